"""What a file of rows can do that is too large to be held: be scanned in parts, and read row by row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.foreign_files import no_file
from rljob_trainer.data.rows import RawRow

PLACE = "\0"
"""stands in the error of a scan for the place of its row, which is known once all parts are scanned"""
FoundRow = tuple[int, int, RawRow | None]
"""place (where it begins, the file's own measure), number in its part from 1, row; None: there is none"""


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file that cannot be opened or read."""
    of_path = isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError)
    fault = no_file(path) if of_path else None
    return DataError(f"{path}: cannot be read: {f'it {fault}' if fault else error.strerror}")


class Digest(Protocol):
    """A hash; xxhash's and hashlib's have it."""

    def update(self, data: bytes, /) -> None:
        """Take more bytes in."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one scan goes through: the rows whose places are in [start, stop)."""

    start: int
    stop: int
    limit: int | None = None
    """rows; None: all"""


class RowFile(Protocol):
    """A file of rows. What it reads is not kept."""

    @property
    def path(self) -> Path:
        """The file."""

    def name(self, number: int) -> str:
        """Return what messages call the row with this number, counted from 1 over the whole file."""

    def parts(self, limit: int | None) -> Sequence[Part]:
        """Return what to scan for the first `limit` rows, in order. Raises OSError."""

    def limit_process(self) -> None:
        """Limit what this process, which only scans, may take for it."""

    def scan(self, part: Part, keys: Sequence[str], digest: Digest) -> Iterator[FoundRow]:
        """Yield the rows of a part, with at least what stands under `keys`; hash them.

        Raises OSError, and DataError with `PLACE` where one is not a row.
        """

    def read(self, places: Sequence[int]) -> list[RawRow]:
        """Return whole rows in the order of `places`. Raises DataError and OSError."""
