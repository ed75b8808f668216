"""What is made of rows: held in memory, or made of the rows of a file before it is needed, in the background."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from rljob_trainer.data.rows import Row
from rljob_trainer.data.stored_rows import StoredRows

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class MadeOfRows(Protocol[T_co]):
    """One thing for each row."""

    def __len__(self) -> int:
        """Return how many rows there are."""

    def __getitem__(self, row: int, /) -> T_co:
        """Return what is made of the row. Raises DataError."""

    def expect(self, rows: Sequence[int]) -> None:
        """Take note that these rows are asked for next, in this order; return at once."""


class Held(tuple[T, ...]):
    """All of it is in memory."""

    __slots__ = ()

    def expect(self, rows: Sequence[int]) -> None:
        """Do nothing."""


class ReadAhead(Generic[T]):
    """Reads the rows that are expected and makes T of them, in one separate thread; what is taken is forgotten.

    `make` is called in that thread alone, so that a tokenizer which only it uses is used by one thread.
    """

    def __init__(self, rows: StoredRows, make: Callable[[Row], T]) -> None:
        self._rows = rows
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._expected: dict[int, tuple[Future[list[T]], int]] = {}
        """row -> what it is read with, and its place in there"""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> T:
        """Return what is made of the row, waiting for it if need be."""
        if row not in self._expected:
            self._read([row])
        made, place = self._expected.pop(row)
        return made.result()[place]

    def expect(self, rows: Sequence[int]) -> None:
        """Begin to read those of the rows that are not being read; forget what is not among them."""
        wanted = dict.fromkeys(rows)
        for row in self._expected.keys() - wanted.keys():
            del self._expected[row]
        self._read([row for row in wanted if row not in self._expected])

    def _read(self, rows: list[int]) -> None:
        made = self._thread.submit(self._made, rows)
        self._expected |= {row: (made, place) for place, row in enumerate(rows)}

    def _made(self, rows: Sequence[int]) -> list[T]:
        return [self._make(row) for row in self._rows.read(rows)] if rows else []
