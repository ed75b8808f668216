"""What response tokens take away from the reward of their sample before advantages are computed: a KL penalty, or none.

Axes: G samples of one prompt, T response tokens of one sample.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rljob_trainer.algorithms.algorithm import Penalties_T
from rljob_trainer.learners.config import Estimator, KlSettings
from rljob_trainer.measured import Measurement, Shares, Turns
from rljob_trainer.samples import ScoredGroup


@dataclass(frozen=True, slots=True)
class Penalised:
    """The penalties of one rollout."""

    groups: tuple[tuple[Penalties_T, ...], ...]
    """of every response token that is trained on, of every sample of every group"""
    kl: float
    """mean KL estimate of all response tokens [nats]"""


class Penalties(Protocol):
    def __call__(self, groups: Many[ScoredGroup]) -> Penalised | None:
        """Return what is taken away; None: nothing."""


def no_penalties(groups: Many[ScoredGroup]) -> None:
    """Take nothing away."""


class Estimates(Protocol):
    """Whoever holds policy and reference: the learner."""

    def kl(self, shares: Shares, estimator: Estimator) -> Many[Many[npt.NDArray[np.float32]]]:
        """Return the KL estimate of each response token [nats], for each micro-batch of each data-parallel share."""


@dataclass(frozen=True, slots=True)
class KlPenalties:
    """coefficient x KL estimate of policy against reference, by the weights that the samples are trained on.

    The learner needs a turn of its own for it, before the one in which it trains.
    """

    learner: Estimates
    turns: Turns
    settings: KlSettings
    data_parallel: int
    max_tokens: int
    """tokens of one micro-batch"""

    def __call__(self, groups: Many[ScoredGroup]) -> Penalised:
        measure = partial(self.learner.kl, estimator=self.settings.estimator)
        kl = Measurement(measure, self.turns, self.data_parallel, self.max_tokens)(groups)
        every = np.concatenate([np.empty(0), *(kl_T for group in kl for kl_T in group)])
        return Penalised(
            groups=tuple(tuple(self.settings.coefficient * kl_T for kl_T in group) for group in kl),
            kl=float(every.mean()) if len(every) else 0.0,
        )
