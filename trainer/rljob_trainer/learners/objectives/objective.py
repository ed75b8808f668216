"""What a policy objective is: a loss for each response token, from log-probabilities and advantages.

How the losses of tokens are weighted against each other is not its business (`aggregation.py`), nor are penalties and
corrections (`rank/loss/loss.py`). Axes: R response tokens of a micro-batch, S its sequences.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import torch

from rljob_trainer import user_code
from rljob_trainer.learners.config import LossSettings


@dataclass(frozen=True, slots=True)
class Responses:
    """The response tokens of a micro-batch. A sequence lies whole in one micro-batch, its tokens side by side."""

    logprobs_R: torch.Tensor
    """the policy's; the only tensor with a gradient"""
    old_logprobs_R: torch.Tensor
    """the old policy's, see `LossSettings.old`"""
    advantages_R: torch.Tensor
    counts_R: torch.Tensor
    """1 for a token that the loss sees, 0 for one that it does not"""
    sequences_R: torch.Tensor
    """which sequence a token belongs to, from 0"""
    num_sequences: int

    def sums(self, values_R: torch.Tensor) -> torch.Tensor:
        """Return for each token the sum of the values of its sequence, over the tokens that the loss sees."""
        sums_S = values_R.new_zeros(self.num_sequences)
        return sums_S.index_add(0, self.sequences_R, values_R * self.counts_R.to(values_R.dtype))[self.sequences_R]

    def means(self, values_R: torch.Tensor) -> torch.Tensor:
        """Return for each token the mean of the values of its sequence, over the tokens that the loss sees."""
        return self.sums(values_R) / self.sums(torch.ones_like(values_R)).clamp(min=1.0)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What an objective makes of the tokens."""

    loss_R: torch.Tensor
    ratio_R: torch.Tensor
    """of new to old policy; for the metrics"""
    clipped_R: torch.Tensor
    """true where a bound of the ratio changed the loss; for the metrics"""


class Objective(Protocol):
    """One policy objective: a pure function, `module:object` of which an `Algorithm` names."""

    def __call__(self, responses: Responses, settings: LossSettings) -> Surrogate:
        """Return the loss of each token, to be minimised. Its gradient reaches the weights through `logprobs_R`."""


def load(path: str) -> Objective:
    """Return the objective that `module:object` names. Raises ValueError if there is none."""
    try:
        objective = user_code.load(path)
    except user_code.NotThereError as error:
        raise ValueError(f"{path} is not a policy objective: {error}") from error
    if not callable(objective):
        raise ValueError(f"{path} is not a policy objective: it is not a function")
    return cast(Objective, objective)
