"""Chooses the algorithm that the manifest names: a built-in one by its name, a user's by `module:object`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic.alias_generators import to_snake

from rljob_api import sections
from rljob_api.algorithms import KNOWN
from rljob_trainer import user_code
from rljob_trainer.algorithms.algorithm import Advantage, Algorithm, GroupOutcome, Make, Value
from rljob_trainer.algorithms.errors import AlgorithmError

log = logging.getLogger(__name__)

LARGEST = float(np.finfo(np.float32).max)
"""of an advantage: the learner computes in fp32"""
LENGTH = 3
"""of a made-up response [tokens]"""


def algorithm(settings: sections.Algorithm) -> Algorithm:
    """Return what `settings.name` stands for. Raises AlgorithmError if it cannot be loaded, or is not an algorithm."""
    name = settings.name
    if name in KNOWN:
        ours: Make = user_code.load(path_of(name))
        return ours(settings)
    try:
        make = user_code.load(name)
    except user_code.NotThereError as error:
        raise AlgorithmError(f"{name}: {error}") from error
    if not callable(make):
        raise AlgorithmError(f"algorithm.name {name} is {make!r:.100}; a function of the settings is wanted")
    try:
        made = make(settings)
    except Exception as error:
        raise AlgorithmError(f"algorithm.name {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Algorithm):
        raise AlgorithmError(f"algorithm.name {name} returned {made!r:.100}; an Algorithm is wanted")
    return replace(made, advantage=Checked(name, made.advantage))


def path_of(name: str) -> str:
    """Return `module:object` of a built-in algorithm: both are its name in snake case."""
    return f"{__package__}.{to_snake(name)}:{to_snake(name)}"


def tried(algorithm: Algorithm, samples: int) -> None:
    """Ask for the advantages of two made-up groups of this size. Raises AlgorithmError if they do not fit."""
    rewards = ([sample % 2 for sample in range(samples)], [0.25] * samples)
    none = (np.zeros(LENGTH),) * samples
    algorithm.advantage(
        [GroupOutcome(tuple(map(float, rewards_G)), (LENGTH,) * samples, none, none) for rewards_G in rewards]
    )


def smallest_group(algorithm: Algorithm, samples: int) -> int:
    """Return how many samples of a group the algorithm needs when some were lost: two, or all `samples`.

    Ours need two. A user's may take it that all groups are equally large.
    """
    if not isinstance(algorithm.advantage, Checked):
        return 2
    none = (np.zeros(LENGTH),) * samples
    sizes = sorted({2, max(2, samples // 2), max(2, samples - 1), samples})
    uneven = [
        GroupOutcome(tuple(float(sample % 2) for sample in range(size)), (LENGTH,) * size, none[:size], none[:size])
        for size in sizes
    ]
    try:
        groups = algorithm.advantage(uneven)
    except AlgorithmError as error:
        log.warning("action=keep_whole_groups samples=%d reason=%s", samples, error)
        return samples
    return 2 if [len(group) for group in groups] == sizes else samples


@dataclass(frozen=True, slots=True)
class Checked:
    """A user's advantage, whose results are checked before training."""

    name: str
    advantage: Advantage

    def __call__(self, outcomes: Sequence[GroupOutcome]) -> Sequence[Sequence[Value]]:
        """Return the advantages. Raises AlgorithmError if they are not one finite number a sample, or a token."""
        try:
            groups = self.advantage(outcomes)
        except Exception as error:
            raise AlgorithmError(f"algorithm.name {self.name} failed: {type(error).__name__}: {error}") from error
        if len(groups) != len(outcomes):
            raise AlgorithmError(f"algorithm.name {self.name}: {len(groups)} groups of advantages for {len(outcomes)}")
        for advantages, outcome in zip(groups, outcomes, strict=True):
            self._check(advantages, outcome)
        return groups

    def _check(self, advantages: Sequence[Value], outcome: GroupOutcome) -> None:
        rewards_G, lengths_G = outcome.rewards_G, outcome.lengths_G
        fits = len(advantages) == len(rewards_G) and all(
            np.shape(value) in ((), (length,)) for value, length in zip(advantages, lengths_G, strict=True)
        )
        if not fits or not all(np.all(np.abs(value) <= LARGEST) for value in advantages):  # false for NaN
            raise AlgorithmError(
                f"algorithm.name {self.name}: advantages {advantages!r:.200} for rewards {rewards_G}; one finite "
                "number for each sample is wanted, or one for each of its response tokens"
            )
