"""Null parts: stand in the loop where a mode leaves a part out. They do nothing, and their results show it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.metrics import LearnerMetrics, Publication
from rljob_trainer.samples import ScoredGroup


class NoBatches:
    """Nothing is trained."""

    def __call__(self, groups: Sequence[ScoredGroup]) -> tuple[StepBatch, ...]:
        """Return no optimizer step."""
        return ()


class NoLearner:
    """There is no learner."""

    def train(self, batches: Sequence[StepBatch]) -> LearnerMetrics:
        """Measure nothing."""
        return LearnerMetrics()


class NoGpuSharing:
    """Learner and engines share no GPU."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Change nothing."""
        yield

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Change nothing."""
        yield


@dataclass(frozen=True, slots=True)
class NoCheckpoints:
    """There is no learner whose state could be saved."""

    directory: Path

    def begin(self, step: int) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Nothing is written."""

    def settle(self) -> None:
        """Nothing is written."""

    def save(self, step: int) -> Path:
        """Return where the run's files are."""
        return self.directory


@dataclass(frozen=True, slots=True)
class SameWeights:
    """Engines keep the weights of one publication, which is returned again at each step."""

    publication: Publication

    def publish(self, version: int) -> Publication:
        """Publish nothing; an engine that was restarted has caught up by itself."""
        return replace(self.publication, seconds=0.0, parts={})


class NoEngines:
    """There are no engines to receive the weights."""

    def publish(self, version: int) -> Publication:
        """Return a publication to no engine."""
        return Publication(version, 0.0, engines=(), failed={})
