"""Scored groups to optimizer steps: advantages, loss weights, packing. No torch.

Axes: G samples of one prompt, T response tokens of one sample.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_trainer.algorithms.algorithm import Advantage, GroupOutcome, Returns, Value
from rljob_trainer.batches.loss_weights import Aggregation
from rljob_trainer.batches.packing import MicroBatch, Packing, TrainingSequence, ValueTargets, pack
from rljob_trainer.batches.penalties import Penalties
from rljob_trainer.batches.token_values import Values, no_values
from rljob_trainer.samples import Prompt, Sample, ScoredGroup, TokenSequence, sequences


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The samples of one optimizer step, for each data-parallel rank."""

    micro_batches_by_rank: tuple[tuple[MicroBatch, ...], ...]
    samples: int
    tokens: int
    """tokens that go through the learner, prompts included"""
    kl: float | None = None
    """mean KL estimate over the whole rollout against what was taken from the rewards: reference or teacher [nats]"""


@dataclass(frozen=True, slots=True)
class Batches:
    """Makes the optimizer steps of one rollout."""

    advantage: Advantage
    penalties: Penalties
    weights: Aggregation
    keep_zero_advantage: bool
    """whether samples without advantage still matter (a KL or entropy term or a critic does not need one)"""
    global_batch_size: int
    """samples in one optimizer step"""
    packing: Packing
    values: Values = no_values
    returns: Returns | None = None
    """what the critic is fitted to; None: there is no critic"""
    choices: int = 0
    """experts of all layers that a token is sent to, for updates that use those of the rollout; 0: they do not"""

    def __call__(self, groups: Sequence[ScoredGroup]) -> tuple[StepBatch, ...]:
        """Return the optimizer steps; every sample counts in exactly one of them.

        Where samples were lost, all steps lose some: a last step of one sample would weigh as much as the others.
        """
        penalised, values = self.penalties(groups), self.values(groups)
        outcomes = [
            GroupOutcome(
                rewards_G=group.rewards_G,
                lengths_G=tuple(sample.num_trained for sample in group.group.samples_G),
                penalties_G=penalised.groups[index] if penalised else None,
                values_G=values[index] if values else None,
            )
            for index, group in enumerate(groups)
        ]
        samples = [
            (group, sample, advantage, targets)
            for group, advantages, outcome in zip(groups, self.advantage(outcomes), outcomes, strict=True)
            for sample, advantage, targets in zip(
                group.group.samples_G, advantages, self._value_targets(outcome), strict=True
            )
        ]
        kl = penalised.kl if penalised else None
        return tuple(self._step(samples[start:end], kl) for start, end in shares(len(samples), self.global_batch_size))

    def _value_targets(self, outcome: GroupOutcome) -> list[ValueTargets | None]:
        """Return what the critic is fitted to on each sample of a group."""
        if self.returns is None or outcome.values_G is None:
            return [None] * len(outcome.lengths_G)
        return [ValueTargets(*each) for each in zip(outcome.values_G, self.returns(outcome), strict=True)]

    def _step(
        self, samples: list[tuple[ScoredGroup, Sample, Value, ValueTargets | None]], kl: float | None
    ) -> StepBatch:
        # Samples without advantage count in the weights although they are left out: they are part of the step.
        weights = self.weights([sample.num_trained for _, sample, *_ in samples])
        chosen = [
            sequence
            for (group, sample, advantage, targets), weight in zip(samples, weights, strict=True)
            if sample.num_trained and (np.any(advantage) or self.keep_zero_advantage)
            for sequence in self._sequences(group.group.prompt, sample, advantage, targets, weight)
        ]
        packed = pack(chosen, self.packing)
        return StepBatch(packed, len(samples), sum(len(sequence.tokens) for sequence in chosen), kl)

    def _sequences(
        self, prompt: Prompt, sample: Sample, advantage: Value, targets: ValueTargets | None, weight: float
    ) -> Iterator[TrainingSequence]:
        """Yield what is trained on of a sample: each of its sequences with its part of what each token has."""
        begin = 0
        for each in sequences(prompt, sample):
            part = slice(begin, begin := begin + each.num_trained)
            if not each.num_trained:
                continue
            yield TrainingSequence(
                tokens=(*each.prompt_T, *each.tokens_T),
                prompt_length=len(each.prompt_T),
                advantage=advantage[part] if isinstance(advantage, np.ndarray) else advantage,
                logprobs=each.logprobs,
                weight=weight,
                trained=each.trained_T if sample.segments else (),
                value_targets=targets and ValueTargets(targets.old_values[part], targets.returns[part]),
                experts=experts_of(each, self.choices) if self.choices else None,
            )


def shares(samples: int, size: int) -> tuple[tuple[int, int], ...]:
    """Return beginnings and ends of as few parts as possible of at most `size`, which differ by one at most."""
    steps = -(-samples // size)
    return tuple((part * samples // steps, (part + 1) * samples // steps) for part in range(steps))


def experts_of(made: Sample | TokenSequence, choices: int) -> npt.NDArray[np.int16]:
    """Return the experts of each layer [tokens, choices] that an engine used, for the tokens that it has computed.

    Raises ValueError where it does not say, or speaks of another model.
    """
    given = made.experts
    if given is None or len(given) % choices:
        number = 0 if given is None else len(given)
        raise ValueError(
            f"engine {made.engine} returned {number} experts for a sample, which is not a multiple of the {choices}"
            " that each of its tokens is sent to"
        )
    return given.reshape(-1, choices)
