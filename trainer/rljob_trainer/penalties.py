"""What response tokens take away from the reward of their sample before advantages are computed: a KL penalty, what
distillation's teacher thinks of them, or nothing.

Axes: G samples of one prompt, T response tokens of one sample.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rljob_trainer.algorithms.algorithm import Penalties_T
from rljob_trainer.packing import MicroBatch, Sequence, pack
from rljob_trainer.samples import ScoredGroup

Shares = tuple[tuple[MicroBatch, ...], ...]


@dataclass(frozen=True, slots=True)
class Penalised:
    """The penalties of one rollout."""

    groups: tuple[tuple[Penalties_T, ...], ...]
    """of every response token of every sample of every group"""
    kl: float
    """mean KL estimate of all response tokens [nats]"""


class Penalties(Protocol):
    def __call__(self, groups: Many[ScoredGroup]) -> Penalised | None:
        """Return what is taken away; None: nothing."""


def no_penalties(groups: Many[ScoredGroup]) -> None:
    """Take nothing away."""


class Turns(Protocol):
    def training(self) -> AbstractContextManager[None]:
        """Give the devices to the learner for a while."""


Estimates = Callable[[Shares], Many[Many[npt.NDArray[np.float32]]]]
"""the learner, which holds the policy and what it is compared with: returns the KL estimate of each response token
[nats], for each micro-batch of each data-parallel share"""


@dataclass(frozen=True, slots=True)
class KlPenalties:
    """coefficient x KL estimate of policy against reference or teacher, by the weights that the samples are trained on.

    The learner needs a turn of its own for it, before the one in which it trains.
    """

    estimates: Estimates
    turns: Turns
    coefficient: float
    data_parallel: int
    max_tokens: int
    """tokens of one micro-batch"""

    def __call__(self, groups: Many[ScoredGroup]) -> Penalised:
        kl_by_sample = self._estimates(_sequences(groups))
        numbers = iter(range(sum(len(group.rewards_G) for group in groups)))
        kl = [[kl_by_sample.get(next(numbers), np.empty(0)) for _ in group.rewards_G] for group in groups]
        every = np.concatenate([np.empty(0), *kl_by_sample.values()])
        return Penalised(
            groups=tuple(tuple(self.coefficient * kl_T for kl_T in group) for group in kl),
            kl=float(every.mean()) if len(every) else 0.0,
        )

    def _estimates(self, sequences: list[Sequence]) -> dict[int, npt.NDArray[np.float64]]:
        """Return the KL estimate of each response token, by the numbers of the samples."""
        if not sequences:
            return {}
        shares = pack(sequences, self.data_parallel, self.max_tokens)
        with self.turns.training():
            estimates = self.estimates(shares)
        return dict(
            pair
            for share, share_estimates in zip(shares, estimates, strict=True)
            for micro_batch, kl_R in zip(share, share_estimates, strict=True)
            for pair in _by_sample(micro_batch, kl_R.astype(float))
        )


def _sequences(groups: Many[ScoredGroup]) -> list[Sequence]:
    """Return all samples that have a response, under their numbers."""
    samples = [(group.group.prompt.tokens_T, sample) for group in groups for sample in group.group.samples_G]
    return [
        Sequence((*prompt, *sample.tokens_T), len(prompt), 0.0, sample.logprobs_T, weight=1.0, index=index)
        for index, (prompt, sample) in enumerate(samples)
        if sample.tokens_T
    ]


def _by_sample(micro_batch: MicroBatch, values_R: npt.NDArray[np.float64]) -> list[tuple[int, npt.NDArray[np.float64]]]:
    """Return the values of each sequence with the sequence's number."""
    bounds = np.cumsum(np.bincount(micro_batch.sequences_R, minlength=micro_batch.num_sequences))[:-1]
    return list(zip(micro_batch.indices_S.tolist(), np.split(values_R, bounds), strict=True))
