"""What stands in the loop where a debug mode leaves a part out: it does nothing, and says so in its results."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

from rljob_trainer.batches import StepBatch
from rljob_trainer.metrics import Publication, TrainMetrics
from rljob_trainer.samples import ScoredGroup

NOTHING_TRAINED = TrainMetrics(
    loss=nan,
    grad_norm=nan,
    learning_rate=nan,
    skipped=0,
    tokens=0,
    clip_fraction=nan,
    kl=None,
    entropy=None,
    mismatch=nan,
)
"""not a number: nothing was measured, which is not zero"""


class NoBatches:
    """Nothing will be trained."""

    def __call__(self, groups: Sequence[ScoredGroup]) -> tuple[StepBatch, ...]:
        """Return no optimizer step."""
        return ()


class NoLearner:
    """There is no learner."""

    def train(self, batches: Sequence[StepBatch]) -> TrainMetrics:
        """Measure nothing."""
        return NOTHING_TRAINED


class NoTurns:
    """Nobody shares the devices."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Change nothing."""
        yield


@dataclass(frozen=True, slots=True)
class NoCheckpoints:
    """There is no learner whose state could be saved."""

    directory: Path

    def save(self, step: int) -> Path:
        """Return where the run's files are."""
        return self.directory


@dataclass(frozen=True, slots=True)
class SameWeights:
    """Engines that keep the weights of one publication: what it was is told again at each step."""

    publication: Publication

    def publish(self, version: int) -> Publication:
        """Publish nothing; an engine that was restarted has caught up by itself."""
        return replace(self.publication, seconds=0.0, parts={})


class NoEngines:
    """Nobody receives the weights."""

    def publish(self, version: int) -> Publication:
        """Return a publication to no engine."""
        return Publication(version, 0.0, engines=(), failed={})
