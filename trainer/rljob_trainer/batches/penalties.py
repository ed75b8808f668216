"""What response tokens take away from the reward of their sample before advantages are computed: a KL penalty, what
distillation's teacher thinks of them, or nothing.

Axes: G samples of one prompt, T response tokens of one sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rljob_trainer.algorithms.algorithm import Penalties_T
from rljob_trainer.batches.token_values import Measurement
from rljob_trainer.samples import ScoredGroup


@dataclass(frozen=True, slots=True)
class Penalised:
    """The penalties of one rollout."""

    groups: tuple[tuple[Penalties_T, ...], ...]
    """of every response token that is trained on, of every sample of every group"""
    kl: float
    """mean KL estimate of all response tokens [nats]"""


class Penalties(Protocol):
    def __call__(self, groups: Sequence[ScoredGroup]) -> Penalised | None:
        """Return what is taken away; None: nothing."""


def no_penalties(groups: Sequence[ScoredGroup]) -> None:
    """Take nothing away."""


@dataclass(frozen=True, slots=True)
class KlPenalties:
    """coefficient x KL estimate of policy against reference or teacher, by the weights that the samples are trained on.

    The learner needs the GPUs for it once more, before it trains.
    """

    estimates: Measurement
    """by the learner, which holds the policy and what it is compared with: KL estimates [nats]"""
    coefficient: float

    def __call__(self, groups: Sequence[ScoredGroup]) -> Penalised:
        kl = self.estimates(groups)
        every = np.concatenate([np.empty(0), *(kl_T for group in kl for kl_T in group)])
        return Penalised(
            groups=tuple(tuple(self.coefficient * kl_T for kl_T in group) for group in kl),
            kl=float(every.mean()) if len(every) else 0.0,
        )
