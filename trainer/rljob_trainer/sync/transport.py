"""Ways from the learner to the engines: a collective, files that both see, whole or changes, or memory that both map.

All bring the weights to as many engines as possible: one that fails is named with its reason and left behind.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.engines.client import EngineClient, EngineError, EngineUnreachableError, GroupAddress, each
from rljob_trainer.engines.weight_delta import DeltaError
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.sync.layout import TensorSpec, buckets
from rljob_trainer.sync.rank_calls import Backend, Digests

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_S = 5.0
GRACE_S = 0.5


class TransferError(RunError, RuntimeError):
    """The learner could not send; no engine is known to be at fault."""

    exit = Exit.LOST_PEER


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a transfer has brought about."""

    digests: Digests
    """what an engine must hold now"""
    failed: Mapping[str, str]
    """engine -> reason; it may hold anything"""


class Broadcaster(Protocol):
    """Learner rank 0 as a member of a group with engines. All raise TransferError.

    It is a `LearnerLink`; a protocol for tests, whose learner is a thread.
    """

    async def rendezvous(self) -> tuple[str, int]:
        """Return the address of rank 0's machine and a port where it waits for engines to meet it."""

    async def connect(
        self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float
    ) -> None:
        """Meet the engines as rank 0, leaving any earlier group."""

    async def send(self, bucket_bytes: int) -> Digests:
        """Broadcast the current weights in buckets; return what an engine must hold then."""

    async def disconnect(self) -> None:
        """Leave the group; called while `send` hangs, too, and then ends it if the learner responds."""


class Writer(Protocol):
    """Learner rank 0 as the writer of files: a `LearnerLink`. A protocol for tests, whose learner is a thread."""

    async def write(self, directory: Path) -> None:
        """Write the current weights. Raises TransferError."""

    async def written(self) -> Digests:
        """Return what an engine that reads them must hold; may take as long as reading. Raises TransferError."""


class Offerer(Protocol):
    """Learner rank 0 as the writer of what has changed. All raise TransferError.

    It is a `LearnerLink`; a protocol for tests, whose learner is a thread.
    """

    async def offer(self, directory: Path) -> WeightFiles:
        """Write what has changed since the last offer; return what was written."""

    async def write_whole(self, files: WeightFiles) -> None:
        """Write the weights of the last offer as a whole, unless they are there."""

    async def written(self) -> Digests:
        """Return what an engine that holds the offered weights must hold."""


class Receiver(Protocol):
    """An engine's machine, which keeps a copy of the weights in a directory, see `engines.actor.weight_copy`.

    It is a `RayHost`; a protocol for the fake of tests, which have no Ray.

    Both return how many bytes it has read, and raise EngineError.
    """

    async def apply_delta(self, files: WeightFiles, copy: Path, timeout_s: float) -> int:
        """Bring the copy up to date. Raises DeltaError if it needs the whole weights."""

    async def copy_whole(self, files: WeightFiles, copy: Path, timeout_s: float) -> int:
        """Copy the whole weights."""


class Sharer(Protocol):
    """All ranks of the learner, each beside an engine on the same slot. All raise TransferError.

    They are a `LearnerLink`; a protocol for the fake of tests, which has no ranks.
    """

    async def share(self, index: int, bucket_bytes: int) -> Sequence[str]:
        """Put a bucket of the weights into memory that engines can map; return a handle of it for each rank.

        The bucket before stays as it is, that before it is overwritten. Index 0 begins a publication.
        """

    async def shared(self) -> Digests:
        """Return what an engine that has loaded all buckets must hold."""


@dataclass
class Broadcast:
    """Buckets over a process group of the learner and all engines; made anew when the engines are not the same."""

    learner: Broadcaster
    specs: Sequence[TensorSpec]
    """of all tensors, in the order in which the learner sends them"""
    backend: Backend
    ranks_per_engine: int
    bucket_bytes: int
    _members: tuple[str, ...] = ()
    """urls: a restarted engine has another one"""
    _group_name: str = ""

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        """Send to all engines; without those that fail, again, so that the others have all of it.

        `timeout_s` is for each attempt. Raises TransferError when no engine is at fault, twice.
        """
        failed: dict[str, str] = {}
        remaining = list(engines)
        unexplained = 0
        while remaining:
            try:
                await self._meet(remaining, timeout_s)
                return Transfer(await self._send(remaining, timeout_s), failed)
            except _AttemptError as error:
                attempt: _Attempt = error.args[0]
            await self._part(remaining)
            culprits = await _culprits(remaining, attempt)
            unexplained += not culprits
            if unexplained == 2:
                raise TransferError(f"broadcast to {len(remaining)} engines: {attempt}")
            failed |= culprits
            remaining = [engine for engine in remaining if engine.name not in failed]
            log.warning("action=broadcast_again engines=%d left_behind=%s reason=%s", len(remaining), culprits, attempt)
        return Transfer((), failed)

    async def _meet(self, engines: Sequence[EngineClient], timeout_s: float) -> None:
        members = tuple(engine.url for engine in engines)
        if members == self._members:
            return
        await self._part(engines)
        self._group_name = f"rljob-{secrets.token_hex(4)}"
        world_size = 1 + len(engines) * self.ranks_per_engine
        address, port = await self.learner.rendezvous()
        connect = self.learner.connect(address, port, world_size, self._group_name, self.backend, timeout_s)
        joins = {
            engine.name: engine.join_group(
                GroupAddress(
                    address, port, 1 + index * self.ranks_per_engine, world_size, self._group_name, self.backend
                ),
                timeout_s,
            )
            for index, engine in enumerate(engines)
        }
        await _together(connect, joins)
        self._members = members

    async def _send(self, engines: Sequence[EngineClient], timeout_s: float) -> Digests:
        # The engines' answers are awaited together with the collective: one that refuses never enters it.
        receives = {engine.name: self._receive(engine, timeout_s) for engine in engines}
        return await _together(self.learner.send(self.bucket_bytes), receives)

    async def _receive(self, engine: EngineClient, timeout_s: float) -> None:
        announced = buckets(self.specs, self.bucket_bytes)
        for bucket in announced:
            await engine.receive(
                [spec.name for spec in bucket],
                [spec.dtype for spec in bucket],
                [spec.shape for spec in bucket],
                self._group_name,
                bucket is announced[-1],
                timeout_s,
            )

    async def _part(self, engines: Sequence[EngineClient]) -> None:
        """Leave the group, if there is one; an engine that cannot will be asked to join another one anyway."""
        if not self._group_name:
            return
        await self.learner.disconnect()
        await self.forget(engines)

    async def forget(self, engines: Sequence[EngineClient]) -> None:
        """Have engines leave the group alone: its other members may be gone."""
        name, self._group_name, self._members = self._group_name, "", ()
        if not name:
            return
        _, failures = await each({engine.name: engine.leave_group(name, PROBE_S) for engine in engines})
        for engine_name, reason in failures.items():
            log.info("engine=%s action=leave_group reason=%s", engine_name, reason)


@dataclass(frozen=True)
class Disk:
    """A file that learner and engines see: fastest on one machine, in memory (/dev/shm)."""

    learner: Writer
    directory: Path

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        """Write, then let all engines read."""
        async with asyncio.timeout(timeout_s):
            await self.learner.write(self.directory)
        reads = {engine.name: engine.read_weights(str(self.directory), timeout_s) for engine in engines}
        digests, (_, failed) = await asyncio.gather(self.learner.written(), each(reads))
        return Transfer(digests, failed)

    async def forget(self, engines: Sequence[EngineClient]) -> None:
        """Engines hold nothing of the learner's."""


@dataclass(frozen=True)
class Delta:
    """A file of what has changed. Each machine of engines has a copy of the whole, which it changes and engines read.

    A machine whose copy is not what the delta changes gets the whole weights in the same publication.
    """

    learner: Offerer
    directory: Path
    copy: Path
    """directory of the copy, on each machine's own disk or in its memory"""
    receivers: Mapping[str, Receiver]
    """by the engine beside which they are"""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """held while the whole weights are written: who waited finds them there"""

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        """Write, let all machines receive, then let all engines read. `timeout_s` is for each of these parts."""
        began = time.perf_counter()
        async with asyncio.timeout(timeout_s):
            files = await self.learner.offer(self.directory)
        offered_s = time.perf_counter() - began
        receives = {engine.name: self._receive(engine, files, timeout_s) for engine in engines}
        digests, (received, failed) = await asyncio.gather(self.learner.written(), each(receives))
        log.info(
            "action=offer seconds=%.3f whole_bytes=%d delta_bytes=%s received_bytes=%s",
            offered_s,
            files.nbytes,
            files.delta and files.delta.nbytes,
            received,
        )
        return Transfer(digests, failed)

    async def forget(self, engines: Sequence[EngineClient]) -> None:
        """Engines hold nothing of the learner's."""

    async def _receive(self, engine: EngineClient, files: WeightFiles, timeout_s: float) -> int:
        receiver = self.receivers[engine.name]
        try:
            received = await receiver.apply_delta(files, self.copy, timeout_s)
        except DeltaError as error:
            log.info("engine=%s action=copy_whole reason=%s", engine.name, error)
            async with asyncio.timeout(timeout_s), self._writing:
                await self.learner.write_whole(files)
            received = await receiver.copy_whole(files, self.copy, timeout_s)
        await engine.read_weights(str(self.copy), timeout_s)
        return received


@dataclass(frozen=True)
class Ipc:
    """Memory of the learner's ranks, from which engines on the same slots copy, bucket by bucket.

    While engines load a bucket, the ranks fill the next.
    """

    learner: Sharer
    specs: Sequence[TensorSpec]
    """of all tensors, in the order in which the learner shares them"""
    bucket_bytes: int
    ranks: Mapping[str, Sequence[int]]
    """engine -> the learner's rank on each of its slots"""

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        """Bring every bucket to all engines that have not failed. `timeout_s` is for each bucket."""
        last = len(buckets(self.specs, self.bucket_bytes)) - 1
        failed: dict[str, str] = {}
        remaining = {engine.name: engine for engine in engines}
        handles = await self._share(0, timeout_s)
        for index in range(last + 1):
            takes = {
                name: engine.take([handles[rank] for rank in self.ranks[name]], index == last, timeout_s)
                for name, engine in remaining.items()
            }
            following = self._share(index + 1, timeout_s) if index < last else _nothing()
            (_, lost), handles = await asyncio.gather(each(takes), following)
            failed |= lost
            remaining = {name: engine for name, engine in remaining.items() if name not in lost}
        return Transfer(await self.learner.shared(), failed)

    async def forget(self, engines: Sequence[EngineClient]) -> None:
        """Engines hold nothing of the learner's."""

    async def _share(self, index: int, timeout_s: float) -> Sequence[str]:
        async with asyncio.timeout(timeout_s):
            return await self.learner.share(index, self.bucket_bytes)


async def _nothing() -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Who failed in one collective, and how."""

    learner: str | None
    unreachable: Mapping[str, str]
    refused: Mapping[str, str]


class _AttemptError(RuntimeError):
    """A collective did not come about; carries an `_Attempt`."""


async def _together(learner: Coroutine[Any, Any, T], engines: Mapping[str, Coroutine[Any, Any, None]]) -> T:
    """Return the learner's result when all have done their part; at the first failure stop waiting for the rest."""
    part = asyncio.ensure_future(learner)
    parts = {name: asyncio.ensure_future(work) for name, work in engines.items()}
    everyone = [part, *parts.values()]
    try:
        done, pending = await asyncio.wait(everyone, return_when=asyncio.FIRST_EXCEPTION)
        if not pending and all(task.exception() is None for task in done):
            return part.result()
        if pending:  # who is at fault shows when others have had time to fail as well
            await asyncio.wait(pending, timeout=GRACE_S)
        raise _AttemptError(_attempt(part, parts))
    finally:
        for task in everyone:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)


def _attempt(part: asyncio.Future[T], parts: Mapping[str, asyncio.Future[None]]) -> _Attempt:
    failed = {name: error for name, task in parts.items() if task.done() and (error := task.exception()) is not None}
    learner_error = part.exception() if part.done() else None
    for error in [*failed.values(), *([learner_error] if learner_error else [])]:
        if not isinstance(error, EngineError | TransferError):
            raise error
    return _Attempt(
        learner=None if learner_error is None else str(learner_error),
        unreachable={name: str(error) for name, error in failed.items() if isinstance(error, EngineUnreachableError)},
        refused={name: str(error) for name, error in failed.items() if not isinstance(error, EngineUnreachableError)},
    )


async def _culprits(engines: Sequence[EngineClient], attempt: _Attempt) -> dict[str, str]:
    """Return who is to be left behind, and why.

    An engine that does not answer is; one that refused is, only if no other engine explains it: when a member dies, the
    collective fails for the healthy ones, too.
    """
    _, silent = await each({engine.name: engine.probe(PROBE_S) for engine in engines})
    if found := dict(attempt.unreachable) | silent:
        return found
    return dict(attempt.refused) if attempt.learner is None else {}
