"""Rows of a Parquet file: in order, without reading more of the file than is asked for, or one by one by row groups."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow.parquet import FileMetaData, ParquetFile, read_metadata

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.row_file import Digest, FoundRow, Part

BATCH_ROWS = 1024
PIECE_BYTES = 2**20
BATCH_BYTES = 2**30
"""what the rows of a batch can take, if each of them is the largest text of its column"""
DECODED_BYTES, DECODED_TIMES = 2**33, 100
"""what all rows of a file may take that are held: so much in any case, and so many times the file"""


def parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place; raise DataError if the file is missing or is not Parquet."""
    try:
        with ParquetFile(path) as file:
            number = decoded = 0
            most = max(DECODED_BYTES, DECODED_TIMES * path.stat().st_size)
            for batch in file.iter_batches(batch_size=_batch_rows(file.metadata)):
                decoded += batch.nbytes
                if decoded > most:
                    raise DataError(f"{path} row {number + 1}: more than {most} bytes up to here; the file explodes")
                for raw in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", raw
    except (OSError, pyarrow.ArrowException) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> DataError:
    """Return the error for a file that is missing, damaged or no Parquet."""
    return DataError(f"{path}: cannot be read as Parquet: {error}")


class ParquetRows:
    """Rows by their number in the file, counted from 0. Reading one decodes its row group."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def name(self, number: int) -> str:
        """Return what messages call the row with this number, counted from 1."""
        return f"{self.path} row {number}"

    @property
    def largest_group_bytes(self) -> int:
        """The largest row group, decoded [bytes]."""
        return max((group.total_byte_size for group in _groups(self._metadata)), default=0)

    def parts(self, limit: int | None) -> Sequence[Part]:
        """Return the row groups that hold the first `limit` rows."""
        last = self._starts[-1] if limit is None else min(limit, self._starts[-1])
        pairs = zip(self._starts, self._starts[1:], strict=False)
        return tuple(Part(start, min(stop, last)) for start, stop in pairs if start < min(stop, last))

    def scan(self, part: Part, keys: Sequence[str], digest: Digest) -> Iterator[FoundRow]:
        """Yield the rows of a row group, with only those columns that hold `keys`. Raises DataError."""
        number = self._group(part.start)
        self._hash(number, digest)
        wanted = {name for key in keys for name in (key, key.partition(".")[0])}
        try:
            with ParquetFile(self.path, metadata=self._metadata) as file:
                columns = [name for name in file.schema_arrow.names if name in wanted]
                place = part.start
                for batch in file.iter_batches(BATCH_ROWS, row_groups=[number], columns=columns, use_threads=False):
                    for raw in batch.to_pylist():
                        if place == part.stop:
                            return
                        yield place, place - part.start + 1, raw
                        place += 1
        except pyarrow.ArrowException as error:
            raise unreadable(self.path, error) from error

    def read(self, places: Sequence[int]) -> list[Mapping[str, Any]]:
        """Return the rows with these numbers, decoding each row group once. Raises DataError."""
        found: dict[int, Mapping[str, Any]] = {}
        by_group: dict[int, list[int]] = {}
        for place in places:
            by_group.setdefault(self._group(place), []).append(place)
        try:
            with ParquetFile(self.path, metadata=self._metadata) as file:
                for number, inside in by_group.items():
                    table = file.read_row_group(number, use_threads=False)
                    offsets = [place - self._starts[number] for place in inside]
                    found.update(zip(inside, table.take(offsets).to_pylist(), strict=True))
        except pyarrow.ArrowException as error:
            raise unreadable(self.path, error) from error
        return [found[place] for place in places]

    @cached_property
    def _metadata(self) -> FileMetaData:
        try:
            return read_metadata(self.path)
        except (OSError, pyarrow.ArrowException) as error:
            raise unreadable(self.path, error) from error

    @cached_property
    def _starts(self) -> list[int]:
        """Where each row group begins, and where the last one ends."""
        return list(accumulate((group.num_rows for group in _groups(self._metadata)), initial=0))

    def _group(self, place: int) -> int:
        return bisect_right(self._starts, place) - 1

    def _hash(self, number: int, digest: Digest) -> None:
        """Take the bytes of a row group in."""
        group = self._metadata.row_group(number)
        with self.path.open("rb") as file:
            for index in range(group.num_columns):
                column = group.column(index)
                file.seek(column.dictionary_page_offset or column.data_page_offset)
                left = column.total_compressed_size
                while left and (piece := file.read(min(PIECE_BYTES, left))):
                    digest.update(piece)
                    left -= len(piece)


def _groups(metadata: FileMetaData) -> list[Any]:
    return [metadata.row_group(number) for number in range(metadata.num_row_groups)]


def _batch_rows(metadata: FileMetaData) -> int:
    """Return how many rows to decode at once: a text that stands once in a file can be that of every row."""
    columns = [group.column(index) for group in _groups(metadata) for index in range(group.num_columns)]
    largest = max((each.total_uncompressed_size for each in columns), default=0)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, largest)))
