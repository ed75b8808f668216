"""events.jsonl: one record per line, in order of time; the only source of the HTML report.

A line is complete when it ends with a newline. A last line without one was cut off by a crash and is ignored.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from rljob_trainer.own_files import appended, changed, write_whole
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

FILE_NAME = "events.jsonl"
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


class EventsError(ValueError):
    """events.jsonl holds a line that is not a record."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Work that a resumed run repeats."""

    steps: int
    seconds: float


class EventLog:
    """Appends records to a file; each is on the disk when `record` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        self._file = appended(path)

    def record(self, record: Record) -> None:
        self._file.write(record.model_dump_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


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
