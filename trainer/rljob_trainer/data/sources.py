"""Reads the questions that `spec.data` names: a file of JSON lines, a Parquet file, or a procedural task.

Called once, when a run starts. It knows nothing of tokens. A large file of questions to train on stays where it is:
its rows are checked and indexed, and read when their turn comes.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rljob_api.sections import Data, Source
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.index import index
from rljob_trainer.data.json_lines import JsonLines, json_lines
from rljob_trainer.data.row_file import RowFile
from rljob_trainer.data.rows import RawRow, Row, row
from rljob_trainer.data.scan import Task, Turns
from rljob_trainer.data.stored_rows import StoredRows

log = logging.getLogger(__name__)

HELD_BYTES = 64 * 2**20
"""largest file whose rows are all held in memory; where it is, decides the fingerprint with which a run resumes"""
HELD_ROWS = 50_000
"""largest limit of a source whose rows are"""
GROUP_BYTES = 32 * 2**20
"""largest row group, decoded, of a Parquet file that is read row by row: each row costs the decoding of its group"""

PlacedRow = tuple[str, RawRow]


@dataclass(frozen=True, slots=True)
class Questions:
    """What to train on and what to measure on; nothing that is measured on is trained on."""

    train: Sequence[Row]
    """a tuple, or `StoredRows`"""
    held_out: tuple[Row, ...]
    evaluation_sets: Mapping[str, tuple[Row, ...]]


def questions(data: Data, conversations: bool = False) -> Questions:
    """Read all sets; raise DataError when one cannot be used or nothing is left to train on.

    With `conversations`, rows may be whole ones.
    """
    held_out = _read(data.held_out, data, conversations) if data.held_out else ()
    evaluation_sets = {each.name: _read(each, data, conversations) for each in data.evaluation_sets}
    measured = frozenset(question.turns for rows in (held_out, *evaluation_sets.values()) for question in rows)
    train, num_read = _train(data, conversations, measured)
    if not train:
        others = " or data.evaluationSets" if evaluation_sets else ""
        raise DataError(f"data.train: no questions are left; {num_read} were read and all are in data.heldOut{others}")
    log.info("action=read train=%d heldOut=%d removedFromTrain=%d", len(train), len(held_out), num_read - len(train))
    for name, rows in evaluation_sets.items():
        log.info("action=read evaluationSet=%s questions=%d", name, len(rows))
    return Questions(train, held_out, evaluation_sets)


def large_file(source: Source) -> RowFile | None:
    """Return the file of a source if its rows are not to be held in memory; None: they are, or it cannot be read."""
    if source.limit is not None and source.limit <= HELD_ROWS:
        return None
    path = Path(source.jsonl or source.parquet or "")
    if not path.is_file() or path.stat().st_size <= HELD_BYTES:
        return None
    if source.jsonl is not None:
        return JsonLines(path)
    from rljob_trainer.data.parquet import ParquetRows

    rows = ParquetRows(path)
    return rows if rows.largest_group_bytes <= GROUP_BYTES else None


def _train(data: Data, conversations: bool, measured: frozenset[Turns]) -> tuple[Sequence[Row], int]:
    """Return the questions to train on, and how many were read."""
    if (file := large_file(data.train)) is None:
        read = _read(data.train, data, conversations)
        return tuple(question for question in read if question.turns not in measured), len(read)
    task = Task(type(file), file.path, (), data, conversations, measured)
    found = index(file, task, data.train.limit)
    if not found.num_read:
        raise DataError(f"{file.path}: no rows")
    return StoredRows(file, found, data, conversations), found.num_read


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
        return json_lines(Path(source.jsonl))
    if source.parquet is not None:
        from rljob_trainer.data.parquet import parquet_rows

        return parquet_rows(Path(source.parquet), source.limit)
    assert source.reasoning_gym is not None, "the manifest's rules ask for exactly one source"
    from rljob_trainer.data.procedural import distinct_rows

    return distinct_rows(source.reasoning_gym)
