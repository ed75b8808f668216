"""The loop's view of weight sync: `publish` for the step's end, `training` around the learner's work. Synchronous; the
work is done in the driver's background loop.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rljob_trainer.engines.pool import EnginePool
from rljob_trainer.metrics import Publication
from rljob_trainer.processes.background import Background
from rljob_trainer.sync.publisher import Publisher

ATTEMPTS = 4
"""a transfer may be made again without an engine that failed, and has a pause, a verification and a wait around it"""


@dataclass(frozen=True, slots=True)
class EngineWeights:
    """The learner's weights in all engines of a pool."""

    pool: EnginePool
    publisher: Publisher
    background: Background

    def publish(self, version: int) -> Publication:
        """Bring the learner's weights to every engine, verified; engines that fail are out of service."""
        work = self.pool.publish(version, self.publisher.publish)
        return self.background.run(work, timeout_s=ATTEMPTS * self.publisher.timeout_s)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let the learner change its weights: no engine catches up with them until the next publication."""
        self.background.run(self.publisher.learner_moves(), timeout_s=ATTEMPTS * self.publisher.timeout_s)
        yield

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Let the learner save: it has what it needs."""
        yield
