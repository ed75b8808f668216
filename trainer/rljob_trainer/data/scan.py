"""Goes through every row of a part of a file once: whether the trainer can use it, and where it begins.

No row is kept.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from pathlib import Path

import xxhash

from rljob_api.sections import Data
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.messages import Message
from rljob_trainer.data.row_file import PLACE, Part, RowFile
from rljob_trainer.data.rows import RawRow, is_plain, require_response, row

Turns = tuple[Message, ...]

MEASURED = 256
"""rows of each kind that are rendered before a run starts: those that are longest"""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker does."""

    kind: Callable[[Path], RowFile]
    path: Path
    parts: Sequence[Part]
    data: Data
    conversations: bool
    """whether rows may be whole conversations, and each needs a response"""
    measured: frozenset[Turns]
    """what is measured on, and so is not trained on"""


@dataclass(slots=True)
class Scanned:
    """What became of a part."""

    places: "array[int]" = field(default_factory=lambda: array("q"))
    """of the rows to train on"""
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    """of the same rows, from 1 in this part"""
    passed: int = 0
    """numbers given in this part, up to that of a row that cannot be used"""
    rows: int = 0
    """of them with a row"""
    questions: list[tuple[int, int]] = field(default_factory=list)
    """(characters, index in `places`) of the longest"""
    labels: list[tuple[int, int]] = field(default_factory=list)
    """the same of responses"""
    fault: str | None = None
    """why the next row cannot be used; `PLACE` stands for its place"""
    digest: bytes = b""


def scanned(file: RowFile, part: Part, task: Task) -> Scanned:
    """Return what is in a part, up to the first row that cannot be used. Raises OSError."""
    data, found, digest = task.data, Scanned(), xxhash.xxh3_128()
    input_key, label_key = data.input_key, data.label_key
    keys = [key for key in (input_key, label_key, data.metadata_key) if key is not None]
    last_turns = {turns[-1].content for turns in task.measured}
    try:
        for place, number, raw in file.scan(part, keys, digest):
            if raw is None:
                found.passed = number
                continue
            if is_plain(raw, data) and (not task.conversations or str(raw[label_key]).strip()):
                question = raw[input_key]
                is_measured = question in last_turns and (Message("user", question),) in task.measured
                sizes = len(question), len(str(raw[label_key]))
            else:
                turns, sizes = _examined(file, place, raw, task)
                is_measured = turns in task.measured
            if not is_measured:
                _keep(found, sizes)
                found.places.append(place)
                found.numbers.append(number)
            found.passed = number
            found.rows += 1
            if found.rows == part.limit:
                break
    except DataError as error:
        found.fault = str(error)
    found.digest = digest.digest()
    return found


def _examined(file: RowFile, place: int, raw: RawRow, task: Task) -> tuple[Turns, tuple[int, int]]:
    """Return what is said in a row, and how long question and response are. Raises DataError."""
    try:
        found = row(raw, PLACE, task.data, task.conversations)
    except DataError:
        # Again with all columns, which the message lists.
        found = row(file.read([place])[0], PLACE, task.data, task.conversations)
    if task.conversations:
        require_response(found)
    asked = sum(len(text) for turn in found.messages for text in turn.said)
    return found.turns, (asked, len(found.label))


def _keep(found: Scanned, sizes: tuple[int, int]) -> None:
    """Note the next row if its question or its label is among the longest."""
    for longest, size in zip((found.questions, found.labels), sizes, strict=True):
        if len(longest) < MEASURED:
            heappush(longest, (size, len(found.places)))
        elif size > longest[0][0]:
            heappushpop(longest, (size, len(found.places)))
