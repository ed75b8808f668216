"""Rows of a Parquet file: in order, without reading more of the file than is asked for, or one by one by row groups.

A few kilobytes can hold gigabytes: one text for all rows, lists of nothing, pages that unpack a thousandfold. So every
row group is decoded in a process with limits before this one does, and each row has a limit of bytes.
"""

import resource
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import RecordBatch
from pyarrow.parquet import FileMetaData, ParquetFile, read_metadata

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.foreign_files import HEAD, no_file, no_parquet
from rljob_trainer.data.json_lines import MOST_ROW_BYTES
from rljob_trainer.data.row_file import Digest, FoundRow, Part

BATCH_ROWS = 1024
PIECE_BYTES = 2**20
BATCH_BYTES = 2**30
"""what the rows of a batch can take, if each of them is the largest text of its column"""
DECODED_BYTES, DECODED_TIMES = 2**33, 100
"""memory for all held rows of a file: the first in any case [bytes], and the second as a multiple of the file"""
MOST_GROUP_BYTES = 2**31
"""what a row group may take, decoded, of a file that is read row by row"""
REFERENCE_BYTES = 8
"""of Python to a value"""
MEMORY = 2**32
"""of a process that decodes a file, beside its start and the size of the file [bytes]"""
CPU_S = 60
"""of the processor for it [s]; one more for each MiB of the file"""

TRIAL = (sys.executable, "-m", "rljob_trainer.data.parquet_trial")


def parquet_rows(path: Path, limit: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first `limit` rows, each with its place.

    They are decoded in a process with limits first: what that process survives takes no more here. Raises DataError if
    the file is missing, is not Parquet or takes too much.
    """
    _require_parquet(path)
    _try_apart(path, limit, path.stat().st_mtime_ns if path.exists() else 0)
    number = 0
    try:
        for batch in batches(path, limit):
            for raw in islice(_rows(batch), None if limit is None else limit - number):
                number += 1
                yield f"{path} row {number}", raw
    except UnicodeDecodeError as error:
        raise DataError(f"{path} row {number + 1}: has a text that is not UTF-8: {error.reason}") from error


def _require_parquet(path: Path) -> None:
    """Raise DataError where a path, or the beginning of the file, shows that it is not Parquet."""
    try:
        if (fault := no_file(path)) is None:
            with path.open("rb") as file:
                fault = no_parquet(file.read(HEAD))
    except OSError as error:
        raise unreadable(path, error) from error
    if fault is not None:
        raise DataError(f"{path}: cannot be read as Parquet: it {fault}")


def batches(path: Path, limit: int | None, begun: Callable[[int], None] | None = None) -> Iterator[RecordBatch]:
    """Yield at least the first `limit` rows of a file that is held in memory. Raises DataError.

    `begun` is called with the number of each row group before it is decoded.
    """
    try:
        with ParquetFile(path) as file:
            rows = decoded = 0
            most = max(DECODED_BYTES, DECODED_TIMES * path.stat().st_size)
            for group in range(file.num_row_groups):
                if begun is not None:
                    begun(group)
                for batch in _judged(file, path, group):
                    rows, decoded = rows + batch.num_rows, decoded + size(batch)
                    if decoded > most:
                        raise DataError(
                            f"{path} row group {group}: more than {most} bytes in memory up to row {rows}; split it"
                        )
                    yield batch
                    if limit is not None and rows >= limit:
                        return
    except (OSError, pyarrow.ArrowException) as error:
        raise unreadable(path, error) from error


def _judged(file: ParquetFile, path: Path, group: int) -> Iterator[RecordBatch]:
    """Yield the rows of a row group. Raises DataError where one takes too much, or the file has fewer than it says."""
    rows, said = 0, file.metadata.row_group(group).num_rows
    try:
        for batch in file.iter_batches(_batch_rows(file.metadata), row_groups=[group], use_threads=False):
            if size(batch) > MOST_ROW_BYTES:
                _judge_each(batch, path, group, rows)
            rows += batch.num_rows
            yield batch
    except (OSError, pyarrow.ArrowException) as error:
        raise unreadable(path, error, group) from error
    if rows != said:
        raise DataError(f"{path} row group {group}: says that it has {said} rows, and has {rows}")


def _judge_each(batch: RecordBatch, path: Path, group: int, before: int) -> None:
    """Raise DataError where a row takes too much."""
    for row in range(batch.num_rows):
        if (found := size(batch.slice(row, 1))) > MOST_ROW_BYTES:
            place = f"{path} row group {group}, its row {before + row + 1}"
            raise DataError(f"{place}: takes {found} bytes; at most {MOST_ROW_BYTES}")


def size(batch: RecordBatch) -> int:
    """Return what rows take [bytes]: their content, and a reference for each value, also for one that is nothing."""
    return int(batch.nbytes) + REFERENCE_BYTES * sum(map(_values, batch.columns))


def _values(array: Any) -> int:
    kind, types = array.type, pyarrow.types
    if types.is_struct(kind):
        return len(array) + sum(map(_values, array.flatten()))
    if types.is_map(kind):
        first, last = (array.offsets[place].as_py() for place in (0, -1))
        return len(array) + _values(array.keys[first:last]) + _values(array.items[first:last])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return len(array) + _values(array.flatten())
    return len(array)


def _rows(batch: RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows one by one where all at once would take much."""
    pieces = [batch] if size(batch) <= MOST_ROW_BYTES else [batch.slice(row, 1) for row in range(batch.num_rows)]
    for piece in pieces:
        try:
            rows = iter(piece.to_pylist())
        except UnicodeDecodeError:  # again one by one: it is raised in place of the row that has such a text
            rows = (piece.slice(row, 1).to_pylist()[0] for row in range(piece.num_rows))
        yield from rows


@cache
def _try_apart(path: Path, limit: int | None, _modified_ns: int) -> None:
    """Decode a file in a process with limits, once. Raises DataError where it takes too much."""
    trial = subprocess.run([*TRIAL, str(path), str(limit or "")], capture_output=True, text=True, check=False)
    group, _, fault = trial.stdout.rstrip("\n").rpartition("\n")[2].partition(" ")
    if fault:
        raise DataError(fault)
    if trial.returncode:
        raise DataError(
            f"{path} row group {group or 0}: decoding it takes more than {MEMORY} bytes or {_seconds(path)} s of the"
            f" processor, or ends the process that tries it (exit code {trial.returncode})"
        )


def limit_process(path: Path) -> None:
    """Let this process take no more memory and time of the processor than decoding a file may."""
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others reserve more than they use
    bytes_there = path.stat().st_size
    begun_with = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = begun_with + MEMORY + bytes_there
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_seconds(path), _seconds(path)))


def _seconds(path: Path) -> int:
    return CPU_S + path.stat().st_size // 2**20


def unreadable(path: Path, error: Exception, group: int | None = None) -> DataError:
    """Return the error for a file that is missing, damaged, not Parquet, or needs more memory than is free."""
    where = path if group is None else f"{path} row group {group}"
    if isinstance(error, MemoryError):
        return DataError(f"{where}: decoding it takes more than {MEMORY} bytes ({error})")
    return DataError(f"{where}: cannot be read as Parquet: {error}")


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

    def limit_process(self) -> None:
        """Limit what scanning this file may take of this process."""
        limit_process(self.path)

    def scan(self, part: Part, keys: Sequence[str], digest: Digest) -> Iterator[FoundRow]:
        """Yield the rows of a row group, with only the columns of `keys`; all of it is judged. Raises DataError."""
        number = self._group(part.start)
        self._hash(number, digest)
        wanted = {name for key in keys for name in (key, key.partition(".")[0])}
        try:
            with ParquetFile(self.path, metadata=self._metadata) as file:
                columns = [name for name in file.schema_arrow.names if name in wanted]
                place, decoded = part.start, 0
                for batch in _judged(file, self.path, number):
                    decoded += size(batch)
                    if decoded > MOST_GROUP_BYTES:
                        raise DataError(f"{self.path} row group {number}: takes more than {MOST_GROUP_BYTES} bytes")
                    for raw in _rows(batch.select(columns)):
                        if place < part.stop:
                            yield place, place - part.start + 1, raw
                        place += 1
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise unreadable(self.path, error, number) from error

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
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise unreadable(self.path, error) from error
        return [found[place] for place in places]

    @cached_property
    def _metadata(self) -> FileMetaData:
        _require_parquet(self.path)
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
