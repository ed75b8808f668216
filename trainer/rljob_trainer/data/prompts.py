"""The endless stream of training prompts: epoch after epoch, each in its own order, from any position.

The order of an epoch follows from the seed and the epoch's number alone, so that a position is two integers and a
resumed run continues with the prompt that would have come next.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count, islice

import numpy as np
import numpy.typing as npt

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.read_ahead import MadeOfRows
from rljob_trainer.samples import Prompt

Position = tuple[int, int]
"""epoch, and how many prompts of it have been issued"""


class PromptStream:
    """PromptScheduler prompts under the uid `EPOCH:ROW`. `take` moves the position."""

    def __init__(self, prompts: MadeOfRows[Prompt], *, seed: int, shuffle: bool, content: bytes | None = None) -> None:
        """`content` stands for all prompts in the fingerprint; None: each of them is looked at."""
        if not len(prompts):
            raise DataError("there are no prompts to train on")
        self._prompts = prompts
        self._order = lru_cache(maxsize=2)(partial(order, len(prompts), seed if shuffle else None))
        self._epoch, self._offset = 0, 0
        every = (identity(prompts[row]) for row in range(len(prompts)))
        self.fingerprint = _fingerprint(every if content is None else (content,), self._order(0))
        """changes with any prompt, label, and with their order; a resume on another one is refused"""

    @property
    def position(self) -> Position:
        """Where the next prompt comes from."""
        return self._epoch, self._offset

    def seek(self, position: Position) -> None:
        """Go to a position, for example one read from a checkpoint."""
        epoch, offset = position
        if epoch < 0 or not 0 <= offset < len(self._prompts):
            raise DataError(f"position {position} is not within {len(self._prompts)} prompts")
        self._epoch, self._offset = epoch, offset

    def position_after(self, issued: int) -> Position:
        """Return the position of a stream that has issued this number of prompts since its beginning."""
        return divmod(issued, len(self._prompts))

    def draw(self, number: int) -> tuple[Prompt, ...]:
        """Return the next prompts, over the end of an epoch if need be."""
        self._prompts.expect(self.upcoming(number))
        uids = islice(self._uids_from(self.position), number)
        taken = tuple(self.prompt(uid) for uid in uids)
        self._epoch, self._offset = self.position_after(self._issued() + number)
        self._prompts.expect(self.upcoming(number))
        return taken

    def upcoming(self, number: int) -> tuple[int, ...]:
        """Return the rows of the next prompts, without moving."""
        return tuple(map(self.row, islice(self._uids_from(self.position), number)))

    def prompt(self, uid: str) -> Prompt:
        """Return the prompt that the stream issues under this uid."""
        return replace(self._prompts[self.row(uid)], uid=uid)

    def row(self, uid: str) -> int:
        """Return which of the prompts is issued under this uid."""
        return int(uid.partition(":")[2])

    def uids(self, issued: int = 0) -> Iterator[str]:
        """Yield the uids in the order of issue, without end, after this number of them: what a journal must show."""
        return self._uids_from(self.position_after(issued))

    def _issued(self) -> int:
        return self._epoch * len(self._prompts) + self._offset

    def _uids_from(self, position: Position) -> Iterator[str]:
        first_epoch, offset = position
        for epoch in count(first_epoch):
            for row in self._order(epoch)[offset:]:
                yield f"{epoch}:{row}"
            offset = 0


def order(rows: int, seed: int | None, epoch: int) -> npt.NDArray[np.int64]:
    """Return the row numbers of an epoch in the order of issue; as they are when there is no seed."""
    if seed is None:
        return np.arange(rows)
    return np.random.default_rng((seed % 2**64, epoch)).permutation(rows)


def identity(prompt: Prompt) -> bytes:
    """Return all that decides a prompt and its label, without its uid."""
    return repr((prompt.text, prompt.tokens_T, prompt.label)).encode()


def _fingerprint(content: Iterable[bytes], first_order: npt.NDArray[np.int64]) -> str:
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    digest.update(first_order.astype("<i8").tobytes())
    return digest.hexdigest()
