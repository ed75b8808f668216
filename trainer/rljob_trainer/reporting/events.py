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
from rljob_trainer.private_files import appended, changed, write_whole
from rljob_trainer.reporting.records import (
    KINDS,
    CheckpointRecord,
    EvaluationRecord,
    FindingRecord,
    FirstStepRecord,
    Record,
    SamplesRecord,
    StepRecord,
)

log = logging.getLogger(__name__)

FILE_NAME = "events.jsonl"
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
        self._waiting.append(record.model_dump_json().encode() + b"\n")
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


def last_step(path: Path) -> int:
    """Return the last finished step in a file; 0: none."""
    if not path.exists():
        return 0
    return max((record.step for record in read_events(path) if isinstance(record, StepRecord)), default=0)


def rewind(path: Path, step: int) -> Lost:
    """Drop what a run recorded after `step`, so that a resumed run has each step once; return the lost work.

    With step 0 the run starts over, so the accuracy before the first step is dropped, too.

    Engine failures, driver starts and ends stay in the file. It is replaced atomically.
    """
    if not path.exists():
        return Lost(0, 0.0)
    kept, lost_steps, lost_seconds = [], 0, 0.0
    for record in read_events(path):
        if not _belongs_to_step(record) or 0 < step >= record.step:
            kept.append(record)
        elif isinstance(record, StepRecord):
            lost_steps += 1
            lost_seconds += record.seconds
    content = b"".join(record.model_dump_json().encode() + b"\n" for record in kept)
    write_whole(path, content, is_synced=True)
    return Lost(lost_steps, lost_seconds)


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
        record, StepRecord | EvaluationRecord | FindingRecord | FirstStepRecord | SamplesRecord | CheckpointRecord
    )


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with changed(path) as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
