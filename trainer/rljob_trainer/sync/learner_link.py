"""The learner as the publisher sees it: coroutines that take part in a publication, over the learner's group."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.learners.errors import LearnerError, LearnerLostError, LearnerStalledError
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.sync.rank_calls import Backend, Digests, SendingRank, WritingRank
from rljob_trainer.sync.transport import TransferError

P = ParamSpec("P")
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
        await self._call(SendingRank.connect, address, port, world_size, name, backend, timeout_s)

    async def send(self, bucket_bytes: int) -> Digests:
        """Broadcast the weights."""
        return await self._of_rank_0(SendingRank.send, bucket_bytes)

    async def write(self, directory: Path) -> None:
        """Write the weights."""
        await self._call(WritingRank.write, directory)

    async def written(self) -> Digests:
        """Return the digests of what was written."""
        return await self._of_rank_0(WritingRank.written)

    async def offer(self, directory: Path) -> WeightFiles:
        """Write what has changed; return what was written."""
        return await self._of_rank_0(SendingRank.offer, directory)

    async def write_whole(self, files: WeightFiles) -> None:
        """Write the weights of the last offer as a whole."""
        await self._call(SendingRank.write_whole, files)

    async def share(self, index: int, bucket_bytes: int) -> Sequence[str]:
        """Put a bucket into memory that engines can map; return each rank's handle."""
        return await self._call(SendingRank.share, index, bucket_bytes)

    async def shared(self) -> Digests:
        """Return the digests of all that was shared."""
        return await self._of_rank_0(SendingRank.shared)

    async def disconnect(self) -> None:
        """Leave the group, also while `send` hangs."""
        await _translated(asyncio.to_thread(self.learner.interrupt, SendingRank.disconnect))

    async def _of_rank_0(self, method: Callable[Concatenate[Any, P], T | None], *args: P.args, **kwargs: P.kwargs) -> T:
        answer = (await self._call(method, *args, **kwargs))[0]
        assert answer is not None, "rank 0 answers"
        return answer

    async def _call(self, method: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return await _translated(asyncio.to_thread(lambda: self.learner.call(method, *args, **kwargs)))


async def _translated(work: Awaitable[T]) -> T:
    try:
        return await work
    except (LearnerError, LearnerLostError, LearnerStalledError) as error:
        raise TransferError(str(error)) from error
