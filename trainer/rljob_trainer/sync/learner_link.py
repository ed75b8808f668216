"""The learner as the publisher sees it: coroutines that take part in a publication, over the learner's group."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.learners.errors import LearnerError, LearnerLostError, LearnerStalledError
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.sync.rank_calls import Backend
from rljob_trainer.sync.transport import Digests, TransferError

T = TypeVar("T")


@dataclass(frozen=True)
class LearnerLink:
    """Rank 0 as sender and writer; every rank takes part in the export. All raise TransferError."""

    learner: LearnerGroup

    async def rendezvous(self) -> tuple[str, int]:
        """Return where engines can meet rank 0: it may be on another machine than the driver."""
        return await _translated(asyncio.to_thread(self.learner.address))

    async def connect(
        self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float
    ) -> None:
        """Meet the engines."""
        await self._call("connect", address, port, world_size, name, backend, timeout_s)

    async def send(self, bucket_bytes: int) -> Digests:
        """Broadcast the weights."""
        return (await self._call("send", bucket_bytes))[0]

    async def write(self, directory: Path) -> None:
        """Write the weights."""
        await self._call("write", directory)

    async def written(self) -> Digests:
        """Return the digests of what was written."""
        return (await self._call("written"))[0]

    async def offer(self, directory: Path) -> WeightFiles:
        """Write what has changed; return what was written."""
        files: WeightFiles = (await _translated(asyncio.to_thread(self.learner.call, "offer", directory)))[0]
        return files

    async def write_whole(self, files: WeightFiles) -> None:
        """Write the weights of the last offer as a whole."""
        await self._call("write_whole", files)

    async def share(self, index: int, bucket_bytes: int) -> Sequence[str]:
        """Put a bucket into memory that engines can map; return each rank's handle."""
        return await _translated(asyncio.to_thread(self.learner.call, "share", index, bucket_bytes))

    async def shared(self) -> Digests:
        """Return the digests of all that was shared."""
        return (await self._call("shared"))[0]

    async def disconnect(self) -> None:
        """Leave the group, also while `send` hangs."""
        await _translated(asyncio.to_thread(self.learner.interrupt, "disconnect"))

    async def _call(self, method: str, *arguments: object) -> list[Digests]:
        return await _translated(asyncio.to_thread(self.learner.call, method, *arguments))


async def _translated(work: Awaitable[T]) -> T:
    try:
        return await work
    except (LearnerError, LearnerLostError, LearnerStalledError) as error:
        raise TransferError(str(error)) from error
