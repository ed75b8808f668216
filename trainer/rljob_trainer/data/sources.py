"""Reads the questions that `spec.data` names: a file of JSON lines, a Parquet file, or a procedural task.

Called once, when a run starts. It knows nothing of tokens.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rljob_api.sections import Data, Source
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.rows import RawRow, Row, row

log = logging.getLogger(__name__)

PlacedRow = tuple[str, RawRow]


@dataclass(frozen=True, slots=True)
class Questions:
    """What to train on and what to measure on; nothing that is measured on is trained on."""

    train: tuple[Row, ...]
    held_out: tuple[Row, ...]
    evaluation_sets: Mapping[str, tuple[Row, ...]]


def questions(data: Data, conversations: bool = False) -> Questions:
    """Read all sets; raise DataError when one cannot be used or nothing is left to train on.

    With `conversations`, rows may be whole ones.
    """
    held_out = _read(data.held_out, data, conversations) if data.held_out else ()
    evaluation_sets = {each.name: _read(each, data, conversations) for each in data.evaluation_sets}
    read = _read(data.train, data, conversations)
    measured = {question.turns for rows in (held_out, *evaluation_sets.values()) for question in rows}
    train = tuple(question for question in read if question.turns not in measured)
    if not train:
        others = " or data.evaluationSets" if evaluation_sets else ""
        raise DataError(f"data.train: no questions are left; {len(read)} were read and all are in data.heldOut{others}")
    log.info("action=read train=%d heldOut=%d removedFromTrain=%d", len(train), len(held_out), len(read) - len(train))
    for name, rows in evaluation_sets.items():
        log.info("action=read evaluationSet=%s questions=%d", name, len(rows))
    return Questions(train, held_out, evaluation_sets)


def _read(source: Source, data: Data, conversations: bool) -> tuple[Row, ...]:
    rows = tuple(row(raw, place, data, conversations) for place, raw in raw_rows(source))
    if not rows:
        raise DataError(f"{source.jsonl or source.parquet}: no rows")
    return rows


def raw_rows(source: Source) -> Iterator[PlacedRow]:
    """Yield the rows that a source gives, as they are, each with its place. Raises DataError at what cannot be read."""
    return islice(_placed_rows(source), source.limit)


def _placed_rows(source: Source) -> Iterator[PlacedRow]:
    """Choose the reader. The imports are local because each costs seconds that the other kinds need not wait for."""
    if source.jsonl is not None:
        return _json_lines(Path(source.jsonl))
    if source.parquet is not None:
        from rljob_trainer.data.parquet import parquet_rows

        return parquet_rows(Path(source.parquet))
    assert source.reasoning_gym is not None, "the manifest's rules ask for exactly one source"
    from rljob_trainer.data.procedural import distinct_rows

    return distinct_rows(source.reasoning_gym)


def _json_lines(path: Path) -> Iterator[PlacedRow]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _json_object(line, f"{path}:{number}")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _json_object(line: bytes, place: str) -> RawRow:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{place}: a JSON object is wanted, found {type(value).__name__}")
    return value
