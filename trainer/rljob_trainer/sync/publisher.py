"""Publishes the learner's weights: pause, transfer, verify, label, resume.

Every engine either serves exactly these weights afterwards, verified tensor by tensor, or is named as failed and stays
paused: the caller must take it out of service. Knows nothing of health, restarts or routing, see `engines/pool.py`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rljob_trainer.engines.client import EngineClient, PauseMode, each
from rljob_trainer.metrics import Publication
from rljob_trainer.sync.rank_calls import Digests
from rljob_trainer.sync.transport import Transfer, TransferError
from rljob_trainer.text import some

log = logging.getLogger(__name__)

CONTROL_S = 10.0
"""deadline of a small question, such as to pause"""
NAMED = 5
"""unequal tensors that a message names"""


class Transport(Protocol):
    """A way from the learner to the engines, see `transport.py`."""

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        """Bring the learner's weights to all engines that do not fail. Raises TransferError."""

    async def forget(self, engines: Sequence[EngineClient]) -> None:
        """Have engines let go of what they share with a learner that is gone."""


@dataclass
class Publisher:
    """One publication at a time."""

    transport: Transport
    timeout_s: float
    """deadline of the transfer, and of the verification"""
    pause_mode: PauseMode = "abort"
    version: int | None = None
    """of the weights published last"""
    _ahead: bool = False
    """the learner's weights are no longer those of `version`"""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def publish(self, version: int, engines: Sequence[EngineClient]) -> Publication:
        """Bring the learner's weights to the engines as `version`. Raises TransferError."""
        async with self._lock:
            publication = await self._publish(version, engines)
            self.version, self._ahead = version, False
        return publication

    async def catch_up(self, engines: Sequence[EngineClient]) -> Publication | None:
        """Bring the version published last to engines that missed it.

        Returns None when the learner does not hold that version any more, or cannot send: the next publication will
        reach them.
        """
        async with self._lock:
            if self.version is None or self._ahead:
                return None
            try:
                return await self._publish(self.version, engines)
            except TransferError as error:
                log.error("action=catch_up engines=%d reason=%s", len(engines), error)
                return None

    async def forget(self, engines: Sequence[EngineClient]) -> None:
        """The learner is gone: let engines go of it, as far as they answer. What they hold is published anew."""
        async with self._lock:
            self._ahead = True
            await self.transport.forget(engines)

    async def learner_moves(self) -> None:
        """The learner's weights are about to change; returns when no transfer is reading them."""
        async with self._lock:
            self._ahead = True

    async def _publish(self, version: int, engines: Sequence[EngineClient]) -> Publication:
        clock = _Clock()
        intact = {engine.name: engine for engine in engines}
        async with _paused(engines, intact, self.pause_mode, clock) as failed:
            ready = [engine for engine in engines if engine.name not in failed]
            intact.clear()  # from here on they may hold anything
            with clock.part("transfer"):
                transfer = await self.transport.transfer(ready, self.timeout_s)
            failed |= transfer.failed
            reached = [engine for engine in ready if engine.name not in failed]
            with clock.part("verify"):
                failed |= await self._verify(version, reached, transfer.digests)
            intact |= {engine.name: engine for engine in reached if engine.name not in failed}
        verified = tuple(name for name in intact if name not in failed)
        for name, reason in failed.items():
            log.error("engine=%s action=quarantine version=%d reason=%s", name, version, reason)
        parts = " ".join(f"{name}={seconds:.3f}" for name, seconds in clock.parts.items())
        log.info("action=publish version=%d engines=%d seconds=%.3f %s", version, len(verified), clock.total(), parts)
        return Publication(version, clock.total(), verified, dict(failed), clock.parts)

    async def _verify(self, version: int, engines: Sequence[EngineClient], wanted: Digests) -> dict[str, str]:
        """Return the engines that do not hold what they must, with the reasons; label the others' weights."""
        held, failed = await each({engine.name: engine.digests(self.timeout_s) for engine in engines})
        for name, digests in held.items():
            if unequal := unequal_tensors(wanted, digests):
                failed[name] = f"engine {name}: {describe(unequal, wanted)}"
        equal = [engine for engine in engines if engine.name not in failed]
        _, unlabelled = await each({engine.name: engine.label_weights(version, CONTROL_S) for engine in equal})
        return failed | unlabelled


def unequal_tensors(wanted: Digests, held: Digests) -> tuple[str, ...]:
    """Return the names of tensors that differ, are missing or are too many in any rank of an engine."""
    if len(wanted) != len(held):
        return (f"{len(held)} ranks instead of {len(wanted)}",)
    unequal: set[str] = set()
    for ours, theirs in zip(wanted, held, strict=True):
        unequal |= {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    return tuple(sorted(unequal))


def describe(unequal: Sequence[str], wanted: Digests) -> str:
    """Return which tensors are unequal, in words."""
    return f"{len(unequal)} of {len(wanted[0])} tensors differ from the learner's: {some(unequal, NAMED)}"


@asynccontextmanager
async def _paused(
    engines: Sequence[EngineClient], intact: Mapping[str, EngineClient], mode: PauseMode, clock: "_Clock"
) -> AsyncIterator[dict[str, str]]:
    """Pause the engines; in the end, also after an error, resume those in `intact` alone.

    Yields the failures so far by engine, to be added to; an engine that cannot be resumed is added as well.
    """
    with clock.part("pause"):
        _, failed = await each({engine.name: _pause(engine, mode) for engine in engines})
    try:
        yield failed
    finally:
        whole = [engine for engine in intact.values() if engine.name not in failed]
        with clock.part("resume"):
            _, stuck = await each({engine.name: engine.resume(CONTROL_S) for engine in whole})
        failed |= stuck


async def _pause(engine: EngineClient, mode: PauseMode) -> None:
    await engine.pause(mode, CONTROL_S)
    await engine.probe(CONTROL_S)  # the scheduler is alive, and has gone round once: nothing runs any more


class _Clock:
    """Adds up seconds by part."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside for `name`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - started

    def total(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self._started
