"""events.jsonl: one record per line, in order of time; the only source of the HTML report.

A line is complete when it ends with a newline. A last line without one was cut off by a crash and is ignored.
"""

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.private_files import appended, changed, created, draft_of, is_private
from rljob_trainer.reporting.records import (
    KINDS,
    CheckpointRecord,
    EvaluationRecord,
    FindingRecord,
    FirstStepRecord,
    Record,
    SamplesRecord,
    StepRecord,
    SummaryRecord,
)

log = logging.getLogger(__name__)

FILE_NAME = "events.jsonl"
BLOCK = 2**20
"""that is read at once from the end of a file [bytes]"""
MOST_WAITING = 10_000
"""records of a volume that has failed for days; the oldest are dropped first"""
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


class EventsError(RunError, ValueError):
    """events.jsonl holds a line that is not a record."""

    exit = Exit.FAILED


@dataclass(frozen=True, slots=True)
class Lost:
    """Work that a resumed run repeats."""

    steps: int
    seconds: float


class EventLog:
    """Appends records to a file; each is on the disk when `record` returns, or is written with the next one.

    A volume that fails costs no record and ends no run: nothing depends on this file.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        self._path = path
        self._file: BinaryIO | None = appended(path)
        self._size = path.stat().st_size
        """of what is on the disk [bytes]"""
        self._waiting: deque[bytes] = deque(maxlen=MOST_WAITING)

    def record(self, record: Record) -> None:
        self._waiting.append(_line(record))
        try:
            self._write()
        except OSError as error:
            log.warning("action=record file=%s outcome=later records=%d reason=%s", self._path, self._number, error)
            self._leave()

    def close(self) -> None:
        if self._waiting:
            try:
                self._write()
            except OSError as error:
                log.warning("action=close file=%s lost=%d reason=%s", self._path, self._number, error)
        self._leave()

    @property
    def _number(self) -> int:
        return len(self._waiting)

    def _write(self) -> None:
        if self._file is None:
            with changed(self._path) as file:
                file.truncate(self._size)  # of a write that has failed, nothing stays
            self._file = appended(self._path)
        lines = b"".join(self._waiting)
        self._file.write(lines)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._size += len(lines)
        self._waiting.clear()

    def _leave(self) -> None:
        """Close the file: after an error its handle may be stale."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


def read_events(path: Path) -> Iterator[Record]:
    """Yield the records of a file in its order; kinds that this version does not know are skipped.

    Raises EventsError, with the line's number, where a complete line is not a record.
    """
    with path.open("rb") as file:
        yield from records(file, str(path))


def records(lines: Iterable[bytes], name: str) -> Iterator[Record]:
    """Yield the records of lines with their ends; a last line without its end is being written, and is skipped.

    `name` is for errors. Raises EventsError, with the line's number, where a complete line is not a record.
    """
    for number, line in enumerate(lines, start=1):
        if line.endswith(b"\n") and (record := _parse(line, f"{name}:{number}")) is not None:
            yield record


def newest_first(path: Path) -> Iterator[tuple[Record, int, int]]:
    """Yield the records of a file from its end, with where each begins and ends [bytes].

    Raises EventsError where a complete line is not a record.
    """
    for line, begin in _lines_from_the_end(path):
        if (record := _parse(line, f"{path}: line at byte {begin}")) is not None:
            yield record, begin, begin + len(line)


def last_step(path: Path) -> int:
    """Return the last finished step in a file; 0: none."""
    if not path.exists():
        return 0
    return next((record.step for record, _, _ in newest_first(path) if isinstance(record, StepRecord)), 0)


def rewind(path: Path, step: int) -> Lost:
    """Drop what a run recorded after `step`, so that a resumed run has each step once; return the lost work.

    With step 0 the run starts over, so the accuracy before the first step is dropped, too. Only what is behind the
    record of `step` is read.

    Engine failures, driver starts and ends stay in the file. It is replaced atomically.
    """
    if not path.exists():
        return Lost(0, 0.0)
    _follow_version(path)
    kept: list[Record] = []
    whole, lost_steps, lost_seconds, is_changed = 0, 0, 0.0, False
    for record, _, end in newest_first(path):
        if isinstance(record, StepRecord) and 0 < step >= record.step:
            whole = end
            break
        if not _belongs_to_step(record) or 0 < step >= record.step:
            kept.append(record)
            continue
        is_changed = True
        if isinstance(record, StepRecord):
            lost_steps += 1
            lost_seconds += record.seconds
    if is_changed or not is_private(path):
        _replace_end(path, whole, map(_line, reversed(kept)))
    return Lost(lost_steps, lost_seconds)


def _follow_version(path: Path) -> None:
    """Write a file anew that an earlier version has begun: that one kept the values of environment variables."""
    with path.open("rb") as file:
        first = file.readline()
    if first.endswith(b"\n") and (record := _parse(first, f"{path}:1")) is not None and _line(record) != first:
        _replace_end(path, 0, map(_line, read_events(path)))


def _line(record: Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _replace_end(path: Path, whole: int, lines: Iterable[bytes]) -> None:
    """Replace what a file has after `whole` bytes, so that a crash leaves the old file or the new one."""
    draft = draft_of(path)
    try:
        with path.open("rb") as old, created(draft) as new:
            for start in range(0, whole, BLOCK):
                new.write(old.read(min(BLOCK, whole - start)))
            new.writelines(lines)
            new.flush()
            os.fsync(new.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _lines_from_the_end(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield each complete line with its end, the newest first, and where it begins."""
    with path.open("rb") as file:
        place = file.seek(0, os.SEEK_END)
        later = b""  # the end of the line that the next block ends in
        while place:
            size = min(BLOCK, place)
            place -= size
            file.seek(place)
            *ended, rest = (file.read(size) + later).split(b"\n")
            first, *lines = [*(line + b"\n" for line in ended), *([rest] if rest else [])]
            begin = place + len(first) + sum(map(len, lines))
            for line in reversed(lines):
                begin -= len(line)
                if line.endswith(b"\n"):
                    yield line, begin
            later = first
        if later.endswith(b"\n"):
            yield later, 0


def _parse(line: bytes, where: str) -> Record | None:
    try:
        raw = from_json(line)
        kind = raw["kind"]
        return _RECORD.validate_python(raw) if kind in KINDS else None
    except ValidationError as e:
        first = e.errors()[0]
        raise EventsError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from e
    except (ValueError, TypeError, KeyError) as e:
        raise EventsError(f"{where}: not a record: {line[:80]!r}") from e


def _belongs_to_step(record: Record) -> bool:
    return isinstance(
        record,
        StepRecord
        | EvaluationRecord
        | FindingRecord
        | FirstStepRecord
        | SamplesRecord
        | CheckpointRecord
        | SummaryRecord,
    )


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    whole = next((begin + len(line) for line, begin in _lines_from_the_end(path)), 0)
    with changed(path) as file:
        file.truncate(whole)
