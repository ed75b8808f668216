"""What the learner measures of every response token of a rollout, carried back from packed tokens to the samples.

The learner needs the GPUs for it once more, before it trains.

Axes: T response tokens of one sample that are trained on, R those of a micro-batch.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rljob_trainer.batches.packing import MicroBatch, Packing, TrainingSequence, pack
from rljob_trainer.samples import Group, ScoredGroup, sequences

Shares = tuple[tuple[MicroBatch, ...], ...]
Measured_T = npt.NDArray[np.float64]
Measure = Callable[[Shares], Sequence[Sequence[npt.NDArray[np.float32]]]]
"""returns a number for each response token of each micro-batch of each data-parallel share"""


class SharedGpus(Protocol):
    def training(self) -> AbstractContextManager[None]:
        """Give the devices to the learner for a while."""

    def saving(self) -> AbstractContextManager[None]:
        """Let the learner have all of its state on its devices for a while, beside engines that keep their weights."""


class Values(Protocol):
    def __call__(self, groups: Sequence[ScoredGroup]) -> tuple[tuple[Measured_T, ...], ...] | None:
        """Return what a critic expects before each response token of each sample; None: there is no critic."""


def no_values(groups: Sequence[ScoredGroup]) -> None:
    """Expect nothing."""


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A sequence to measure, which has its place in the list as its index, and the number of its sample."""

    sample: int
    sequence: TrainingSequence


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measure of the learner's, of packed tokens."""

    measure: Measure
    gpu_sharing: SharedGpus
    packing: Packing

    def __call__(self, groups: Sequence[ScoredGroup]) -> tuple[tuple[Measured_T, ...], ...]:
        """Return a number for each response token of each sample of each group."""
        by_sample = self._by_sample(_sequences([group.group for group in groups]))
        numbers = iter(range(sum(len(group.rewards_G) for group in groups)))
        return tuple(tuple(by_sample.get(next(numbers), np.empty(0)) for _ in group.rewards_G) for group in groups)

    def mean(self, groups: Sequence[Group]) -> float:
        """Return the mean over the response tokens of all samples."""
        return float(np.concatenate([*self._by_sample(_sequences(groups)).values()]).mean())

    def _by_sample(self, asked: list[_Numbered]) -> dict[int, Measured_T]:
        """Return the numbers of each sample's tokens, by the number of the sample."""
        if not asked:
            return {}
        shares = pack([each.sequence for each in asked], self.packing)
        with self.gpu_sharing.training():
            measured = self.measure(shares)
        values = dict(
            pair
            for share, of_share in zip(shares, measured, strict=True)
            for micro_batch, values_R in zip(share, of_share, strict=True)
            for pair in _split(micro_batch, values_R.astype(float))
        )
        by_sample: dict[int, list[Measured_T]] = {}
        for index, each in enumerate(asked):
            by_sample.setdefault(each.sample, []).append(values[index])
        return {sample: np.concatenate(parts) for sample, parts in by_sample.items()}


def _sequences(groups: Sequence[Group]) -> list[_Numbered]:
    """Return all sequences that have something to train on, in the order of their samples."""
    samples = [(group.prompt, sample) for group in groups for sample in group.samples_G]
    found: list[_Numbered] = []
    for number, (prompt, sample) in enumerate(samples):
        for each in sequences(prompt, sample):
            if each.num_trained:
                sequence = TrainingSequence(
                    tokens=(*each.prompt_T, *each.tokens_T),
                    prompt_length=len(each.prompt_T),
                    advantage=0.0,
                    logprobs=each.logprobs,
                    weight=1.0,
                    index=len(found),
                    trained=each.trained_T,
                )
                found.append(_Numbered(number, sequence))
    return found


def _split(micro_batch: MicroBatch, values_R: Measured_T) -> list[tuple[int, Measured_T]]:
    """Return the values of each sequence with the sequence's number."""
    bounds = np.cumsum(np.bincount(micro_batch.sequences_R, minlength=micro_batch.num_sequences))[:-1]
    return list(zip(micro_batch.indices_S.tolist(), np.split(values_R, bounds), strict=True))
