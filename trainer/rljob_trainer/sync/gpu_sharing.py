"""Learner and engines on the same GPUs, alternately: engines hand back their memory while the learner trains.

    rollout: engines ─► training: learner ─► publication: weights of both ─► rollout

With `LeavingLearner` the learner leaves, too: gradients and optimizer state before the publication, weights after it,
and engines get their KV cache back last. So it may be as large as if there was no learner.

Where each has its own GPUs, or on CPU cores, there is nothing to hand over, and `sync.weights.EngineWeights` alone says
when the learner may change its weights.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rljob_trainer.engines import memory
from rljob_trainer.engines.pool import EnginePool
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.processes.background import Background
from rljob_trainer.sync.weights import EngineWeights

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LeavingLearner:
    """A learner that leaves the GPU while engines roll out."""

    learner: LearnerGroup | None = None
    """None until the learner is started"""
    publishing: memory.Parts = memory.WITHOUT_CACHE

    async def trained(self) -> None:
        """Let gradients and optimizer state leave."""
        await self._leave(weights=False)

    async def published(self) -> None:
        """Let the weights leave, too."""
        await self._leave(weights=True)

    async def _leave(self, *, weights: bool) -> None:
        if self.learner is not None:
            await asyncio.to_thread(self.learner.call, Rank.leave, weights)


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
            self._move("release_memory", self.pool.hold(memory.NOTHING))
            yield
            self._move("resume_memory", self._resume())

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Let the learner have all of its state on the GPU, while engines keep their weights and wait."""
        self._move("make_room", self.pool.hold(self.pool.sharing.publishing))
        yield
        self._move("end_room", self._end_room())

    async def _resume(self) -> None:
        await self.pool.sharing.trained()
        await self.pool.hold(self.pool.sharing.publishing)

    async def _end_room(self) -> None:
        await self.pool.sharing.published()
        await self.pool.hold(memory.ALL)

    def _move(self, action: str, work: Coroutine[Any, Any, None]) -> None:
        began = time.perf_counter()
        self.background.run(work, timeout_s=3 * memory.DEADLINE_S)
        log.info("action=%s seconds=%.3f", action, time.perf_counter() - began)
