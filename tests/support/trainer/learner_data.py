"""Recorded batches for tests of the learner, and its configuration."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from rljob_api.sections import Optimizer, Schedule
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.batches.packing import MicroBatch, TrainingSequence, ValueTargets
from rljob_trainer.learners.config import LearnerConfig

SIZES = frozenset(each.name for each in dataclasses.fields(ParallelLayout))
VOCABULARY_SIZE = 512
RANKS_S = 180.0
"""longest wait for ranks in Ray; their imports alone take 50 s on a slow machine with other tests beside"""


def sequences(count: int, seed: int = 0, samples_per_prompt: int = 2) -> list[TrainingSequence]:
    """Return sequences of different lengths, some with one prompt, with weights that add up to 1."""
    random = np.random.default_rng(seed)
    responses = [tuple(random.integers(0, VOCABULARY_SIZE, random.integers(1, 9)).tolist()) for _ in range(count)]
    prompts = [tuple(random.integers(0, VOCABULARY_SIZE, random.integers(2, 16)).tolist()) for _ in range(count)]
    total = sum(len(response) for response in responses)
    return [
        TrainingSequence(
            tokens=prompts[index // samples_per_prompt] + response,
            prompt_length=len(prompts[index // samples_per_prompt]),
            advantage=float(random.standard_normal()),
            logprobs=tuple((-6.0 + random.standard_normal(len(response))).tolist()),
            weight=1.0 / total,
        )
        for index, response in enumerate(responses)
    ]


def masked(plain: list[TrainingSequence], seed: int = 0) -> list[TrainingSequence]:
    """Return the sequences as if the environment had written every other stretch of 1 to 3 response tokens."""
    random = np.random.default_rng(seed)
    masks = [_stretches(random, len(sequence.logprobs)) for sequence in plain]
    total = sum(map(sum, masks))
    return [
        dataclasses.replace(
            sequence,
            logprobs=tuple(itertools.compress(sequence.logprobs, mask)),
            trained=mask,
            weight=1.0 / total,
        )
        for sequence, mask in zip(plain, masks, strict=True)
    ]


def _stretches(random: np.random.Generator, length: int) -> tuple[bool, ...]:
    lengths = random.integers(1, 4, length)
    return tuple(bool(number % 2 == 0) for number, stretch in enumerate(lengths) for _ in range(stretch))[:length]


def valued(sequences: list[TrainingSequence], seed: int = 0) -> list[TrainingSequence]:
    """Return the sequences with random value targets; old values are near those of a fresh critic, 0."""
    random = np.random.default_rng(seed)
    return [
        dataclasses.replace(
            sequence,
            value_targets=ValueTargets(
                old_values=0.1 * random.standard_normal(len(sequence.logprobs)),
                returns=random.standard_normal(len(sequence.logprobs)),
            ),
        )
        for sequence in sequences
    ]


def learner_config(directory: Path, **changes: Any) -> LearnerConfig:
    """Return a configuration for tests: fp32 on CPU, one thread, a schedule that changes at every step.

    `changes` are of its fields, or of its layout's.
    """
    optimizer = Optimizer(learning_rate=1e-3, schedule=Schedule.COSINE, warmup_steps=2, epsilon=1e-4, weight_decay=0.1)
    config = LearnerConfig(checkpoint_dir=directory, optimizer=optimizer, total_steps=10, timeout_s=60.0)
    return changed(config, **changes)


def changed(config: LearnerConfig, **changes: Any) -> LearnerConfig:
    """Return a configuration in which fields, its own or its layout's, have other values."""
    sizes = {name: changes.pop(name) for name in SIZES & changes.keys()}
    return dataclasses.replace(config, layout=dataclasses.replace(config.layout, **sizes), **changes)


def engine_logprobs(micro_batches: tuple[MicroBatch, ...]) -> list[Any]:
    """Return the engine's log-probabilities, to be used as the old policy's."""
    return [batch.logprobs_R for batch in micro_batches]
