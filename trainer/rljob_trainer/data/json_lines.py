"""A file of JSON lines: its rows in order, in parts, or one by one from where each begins."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol

import orjson

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.foreign_files import HEAD, no_json_lines
from rljob_trainer.data.nesting import MOST_LEVELS, is_deep
from rljob_trainer.data.row_file import PLACE, Digest, FoundRow, Part, unreadable
from rljob_trainer.data.rows import RawRow

PART_BYTES = 32 * 2**20
"""of a part; the digest of a file's rows depends on it, and a run resumes only with the same digest"""
MOST_ROW_BYTES = 2**28
"""of a line"""
MOST_VALUES = 2**24
"""in a row: an empty list has two bytes in the file, and sixty in memory"""
CONTAINERS = frozenset((dict, list))


class Peekable(Protocol):
    def peek(self, size: int, /) -> bytes:
        """Return what comes next, without taking it."""


def json_lines(path: Path) -> Iterator[tuple[str, RawRow]]:
    """Yield each row with its place; raise DataError at the first that is not a JSON object."""
    try:
        with path.open("rb") as file:
            _require_lines(file, path)
            for number, line in enumerate(_lines(file), start=1):
                if not line.isspace() or len(line) > MOST_ROW_BYTES:
                    yield f"{path}:{number}", json_object(line, f"{path}:{number}")
    except OSError as error:
        raise unreadable(path, error) from error


def json_object(line: bytes, place: str) -> RawRow:
    """Return the object that a line holds; raise DataError naming its place."""
    _judge_size(line, place)
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not JSON: not UTF-8 from byte {error.start} on; write the file as UTF-8") from error
    except ValueError as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep(place) from error
    return _judged(value, line, place)


class JsonLines:
    """Rows by the byte at which their lines begin."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def name(self, number: int) -> str:
        """Return what messages call the line with this number, counted from 1."""
        return f"{self.path}:{number}"

    def parts(self, limit: int | None) -> Sequence[Part]:
        """Return what to scan, in order; with a limit one part, because rows are counted from the beginning."""
        size = self.path.stat().st_size
        if limit is not None:
            return (Part(0, size, limit),)
        return tuple(Part(start, min(start + PART_BYTES, size)) for start in range(0, size, PART_BYTES))

    def limit_process(self) -> None:
        """Leave this process as it is: each line has its own limits."""

    def scan(self, part: Part, keys: Sequence[str], digest: Digest) -> Iterator[FoundRow]:
        """Yield the lines that begin in the part; a blank line has no row. Raises DataError for any but objects."""
        with self.path.open("rb") as file:
            place = 0
            if not part.start:
                _require_lines(file, self.path)
            else:
                file.seek(part.start - 1)
                # A line that continues behind the part is judged where it begins.
                place = part.start - 1 + len(file.readline(part.stop - part.start + 1))
            if place >= part.stop:
                return
            for number, line in enumerate(_lines(file), start=1):
                if line.isspace() and len(line) <= MOST_ROW_BYTES:
                    yield place, number, None
                else:
                    digest.update(line)
                    yield place, number, _parsed(line)
                place += len(line)
                if place >= part.stop:
                    return

    def read(self, places: Sequence[int]) -> list[RawRow]:
        """Return the rows that begin at these bytes. Raises DataError and OSError."""
        rows = []
        with self.path.open("rb") as file:
            for place in places:
                file.seek(place)
                rows.append(json_object(file.readline(MOST_ROW_BYTES + 1), f"{self.path} at byte {place}"))
        return rows


def _require_lines(file: Peekable, path: Path) -> None:
    """Raise DataError where the beginning of a file shows that it is of another kind."""
    if (fault := no_json_lines(file.peek(HEAD))) is not None:
        raise DataError(f"{path}: not JSON lines: it {fault}")


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield each line; one that is too long, in pieces that are too long."""
    return iter(partial(file.readline, MOST_ROW_BYTES + 1), b"")


def _parsed(line: bytes) -> RawRow:
    """Return what `json_object` does, in a fraction of the time for what both parsers take."""
    if len(line) > MOST_VALUES:
        _judge_size(line, PLACE)
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:  # NaN, lone surrogates, more levels than it takes
        return json_object(line, PLACE)
    if type(value) is dict and CONTAINERS.isdisjoint(map(type, value.values())):
        return value
    return _judged(value, line, PLACE)


def _judge_size(line: bytes, place: str) -> None:
    """Raise DataError before a line is parsed that would take too much memory."""
    if len(line) > MOST_ROW_BYTES:
        raise DataError(f"{place}: has more than {MOST_ROW_BYTES} bytes; write one row on each line")
    if len(line) > MOST_VALUES and (values := sum(map(line.count, (b",", b"[", b"{")))) > MOST_VALUES:
        raise DataError(f"{place}: has {values} commas and brackets in {len(line)} bytes; at most {MOST_VALUES}")


def _judged(value: object, line: bytes, place: str) -> RawRow:
    """Return a row, if it is one. Raises DataError."""
    if not isinstance(value, dict):
        raise DataError(f"{place}: a JSON object is wanted, found {type(value).__name__}")
    if line.count(b"[") + line.count(b"{") > MOST_LEVELS and is_deep(value):
        raise _too_deep(place)
    return value


def _too_deep(place: str) -> DataError:
    return DataError(f"{place}: is nested over more than {MOST_LEVELS} levels")
