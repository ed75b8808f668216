"""Scored groups to optimizer steps: advantages, loss weights, packing. No torch.

Axes: G samples of one prompt.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from rljob_trainer.advantage import Advantage
from rljob_trainer.packing import MicroBatch, Sequence, pack
from rljob_trainer.samples import Sample, ScoredGroup


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The samples of one optimizer step, for each data-parallel rank."""

    micro_batches_by_rank: tuple[tuple[MicroBatch, ...], ...]
    samples: int
    tokens: int
    """tokens that go through the learner, prompts included"""


@dataclass(frozen=True, slots=True)
class Batches:
    """Makes the optimizer steps of one rollout."""

    advantage: Advantage
    loss_by_token: bool
    keep_zero_advantage: bool
    """whether samples without advantage still matter (a KL or entropy term does not need one)"""
    global_batch_size: int
    """samples in one optimizer step"""
    data_parallel: int
    max_tokens: int
    """tokens of one micro-batch"""

    def __call__(self, groups: Many[ScoredGroup]) -> tuple[StepBatch, ...]:
        """Return the optimizer steps; every sample counts in exactly one of them."""
        samples = [
            (group, sample, advantage)
            for group in groups
            for sample, advantage in zip(group.group.samples_G, self.advantage(group.rewards_G), strict=True)
        ]
        size = self.global_batch_size
        return tuple(self._step(samples[start : start + size]) for start in range(0, len(samples), size))

    def _step(self, samples: list[tuple[ScoredGroup, Sample, float]]) -> StepBatch:
        weights = loss_weights([len(sample.tokens_T) for _, sample, _ in samples], self.loss_by_token)
        sequences = [
            Sequence(
                tokens=(*group.group.prompt.tokens_T, *sample.tokens_T),
                prompt_length=len(group.group.prompt.tokens_T),
                advantage=advantage,
                logprobs=sample.logprobs_T,
                weight=weight,
            )
            for (group, sample, advantage), weight in zip(samples, weights, strict=True)
            if sample.tokens_T and (advantage != 0.0 or self.keep_zero_advantage)
        ]
        packed = pack(sequences, self.data_parallel, self.max_tokens)
        return StepBatch(packed, len(samples), sum(len(sequence.tokens) for sequence in sequences))


def loss_weights(lengths: Many[int], by_token: bool) -> tuple[float, ...]:
    """Return the weight of each sample's response tokens, so that all tokens' weights add up to 1.

    By token: every token counts the same. By sample: every sample counts the same, shared by its tokens.
    Samples without advantage count in the mean although they are left out of the batch: they are part of the step.
    """
    if by_token:
        total = sum(lengths)
        return tuple(1.0 / total if length else 0.0 for length in lengths)
    return tuple(1.0 / (length * len(lengths)) if length else 0.0 for length in lengths)
