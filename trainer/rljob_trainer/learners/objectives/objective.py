"""What a policy objective is: a loss for each response token, from log-probabilities and advantages.

How the losses of tokens are weighted against each other is not its business (`aggregation.py`), nor are penalties and
corrections (`loss.py`). Axes: R response tokens of a micro-batch, S its sequences.
"""

import importlib
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from rljob_trainer.learners.config import LossSettings
from rljob_trainer.learners.errors import ObjectiveError


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


def require_sign(objective: Objective, settings: LossSettings) -> None:
    """Raise ObjectiveError if the objective makes a token less likely although its advantage is positive.

    Tried once on two short responses of the present policy: such a sign shows in a run only when rewards have fallen.
    """
    logprobs_R = torch.tensor([-0.5, -1.0, -2.0, -4.0], requires_grad=True)
    ones_R = torch.ones(len(logprobs_R))
    responses = Responses(
        logprobs_R=logprobs_R,
        old_logprobs_R=logprobs_R.detach(),
        advantages_R=ones_R,
        counts_R=ones_R.double(),
        sequences_R=torch.tensor([0, 0, 1, 1]),
        num_sequences=2,
    )
    (slope_R,) = torch.autograd.grad(objective(responses, settings).loss_R.sum(), logprobs_R)
    if (slope_R > 0).any():
        raise ObjectiveError(
            f"{settings.objective}: the loss of a token with advantage 1 grows with its log-probability (slopes "
            f"{slope_R.tolist()}), so better responses would become less likely; a loss is minimised: a sign is missing"
        )


def load(path: str) -> Objective:
    """Return the objective that `module:object` names. Raises ValueError if there is none."""
    module_name, _, attribute = path.partition(":")
    objective = getattr(importlib.import_module(module_name), attribute, None)
    if not callable(objective):
        raise ValueError(f"{path} is no policy objective: {module_name} has no function {attribute}")
    return cast(Objective, objective)
