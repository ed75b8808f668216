"""Learner and engines on the same GPUs, in turns: engines hand back their memory while the learner trains.

Where each has its own GPUs, or on CPU cores, there is nothing to hand over, and `sync.weights.EngineWeights` alone says
when the learner may change its weights.
"""

import logging
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rljob_trainer.engines.pool import MEMORY_S, EnginePool
from rljob_trainer.processes.background import Background
from rljob_trainer.sync.weights import EngineWeights

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """Gives the engines' GPU memory to the learner."""

    weights: EngineWeights
    pool: EnginePool
    background: Background

    @contextmanager
    def training(self) -> Iterator[None]:
        """Train on the engines' memory; after an error it stays released, for no engine could serve anyway."""
        with self.weights.training():
            self._move("release_memory", self.pool.release_memory())
            yield
            self._move("resume_memory", self.pool.resume_memory())

    def _move(self, action: str, work: Coroutine[Any, Any, None]) -> None:
        began = time.perf_counter()
        self.background.run(work, timeout_s=2 * MEMORY_S)
        log.info("action=%s seconds=%.3f", action, time.perf_counter() - began)
