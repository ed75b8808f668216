"""The journal of prompts: which were issued, consumed by the learner, and committed with a checkpoint.

    {"event":"issued","step":0,"prompts":["0:17","0:4"]}
    {"event":"consumed","step":0,"prompts":["0:17","0:4"]}
    {"event":"committed","step":1,"checkpoint":"iter_0000001"}

Steps count from 0 as in the loop; a checkpoint's step says how many are done: `committed` with step 1 covers step 0.
It is noted when the state is copied: a checkpoint that was never complete leaves its line, until a rewind cuts it off.
The file holds no times, so a run that was killed and resumed leaves the same bytes as one that was not. Each line is
flushed to the disk before the call returns; a kill can tear only the last one, which the next opening removes.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.private_files import PRIVATE
from rljob_trainer.rundir.retries import PATIENT, Patience

FILE_NAME = "journal.jsonl"
"""in a run's directory"""
Event = Literal["issued", "consumed", "committed"]


class JournalError(RunError, RuntimeError):
    """The journal is damaged, or contradicts the checkpoint or the loop; the text says where."""

    exit = Exit.BAD_INPUT


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal."""

    event: Event
    step: int
    prompts: tuple[str, ...] = ()
    checkpoint: str | None = None

    def line(self) -> bytes:
        """Return the line that stands for the record."""
        what: dict[str, Any] = (
            {"checkpoint": self.checkpoint} if self.event == "committed" else {"prompts": self.prompts}
        )
        return json.dumps({"event": self.event, "step": self.step} | what, separators=(",", ":")).encode() + b"\n"


def recorded(path: Path) -> tuple[list[Record], int]:
    """Return the records of a file, oldest first, and the size of a torn last line [bytes].

    Raises JournalError if a line before it is damaged.
    """
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    records = [_parsed(line, f"{path}:{number}") for number, line in enumerate(complete.splitlines(), 1)]
    return records, len(content) - len(complete)


def audited(records: Sequence[Record], uids: Iterable[str] | None = None) -> Iterator[str]:
    """Yield `NUMBER: what is wrong` for each record that contradicts those before it.

    `uids` is the order in which prompts must have been issued; absent: any, each of them once.
    """
    issued = [uid for record in records if record.event == "issued" for uid in record.prompts]
    audit = _Audit(iter(dict.fromkeys(issued) if uids is None else uids))
    for number, record in enumerate(records, 1):
        if fault := audit.fault(record):
            yield f"{number}: {fault}"


class Journal:
    """An open journal. Every method that writes has reached the disk when it returns."""

    def __init__(self, path: Path, may_write: Callable[[], None] = lambda: None, patience: Patience = PATIENT) -> None:
        """Open or create the file and read it; raise JournalError if a line before the last is damaged.

        `may_write` is asked before each change and raises if this process must not make it. Every method that writes
        raises StorageError if the volume does not take it.
        """
        self._path = path
        self._may_write = may_write
        self._patience = patience
        self._descriptor: int | None = None
        patience(path, self._open)
        self._records, torn = patience(path, lambda: recorded(path))
        self._size = sum(len(record.line()) for record in self._records)
        """of what counts [bytes]"""
        if torn:
            self._cut(self._size)

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, oldest first."""
        return tuple(self._records)

    @property
    def issued_count(self) -> int:
        """Prompts issued so far: `PromptStream.position_after` of it is where the stream continues."""
        return sum(len(record.prompts) for record in self._records if record.event == "issued")

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Prompts issued and not yet consumed, oldest first: a resumed run asks for them again."""
        return outstanding(self._records)

    def issued(self, step: int, prompts: Sequence[str]) -> None:
        """Note that these prompts are about to be sent to engines."""
        self._append(Record("issued", step, tuple(prompts)))

    def consumed(self, step: int, prompts: Sequence[str] | None = None) -> None:
        """Note that the learner has trained on these prompts in `step`; absent: on those issued for it."""
        trained = self._issued_for(step) if prompts is None else tuple(prompts)
        self._append(Record("consumed", step, trained))

    def committed(self, step: int, checkpoint: str) -> None:
        """Note that a checkpoint will hold the state after `step` steps. Noting it twice changes nothing."""
        record = Record("committed", step, checkpoint=checkpoint)
        if record not in self._records:
            self._append(record)

    def rewind(self, step: int, checkpoint: str) -> None:
        """Forget what came after the commit of the checkpoint that holds the state after `step` steps.

        If the run was killed between writing the checkpoint and noting it, note it now. With step 0 (a fresh start,
        no checkpoint) everything is forgotten. Raises JournalError when the journal ends before the checkpoint.
        """
        commit = Record("committed", step, checkpoint=checkpoint)
        if step == 0:
            self._keep(0)
        elif commit in self._records:
            self._keep(self._records.index(commit) + 1)
        else:
            self._keep(self._end_of(step - 1, checkpoint))
            self._append(commit)

    def check(self, uids: Iterable[str]) -> None:
        """Raise JournalError unless prompts were issued in this order, all of them, and none was consumed twice."""
        for fault in audited(self._records, uids):
            raise JournalError(f"{self._path}:{fault}")

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _issued_for(self, step: int) -> tuple[str, ...]:
        issued = [record.prompts for record in self._records if record.event == "issued" and record.step == step]
        if not issued:
            raise JournalError(f"{self._path}: step {step} is recorded as consumed, but none of its prompts as issued")
        return tuple(uid for prompts in issued for uid in prompts)

    def _end_of(self, step: int, checkpoint: str) -> int:
        """Return how many records lead up to the end of a step."""
        for index, record in enumerate(self._records):
            if record.event == "consumed" and record.step == step:
                return index + 1
        raise JournalError(f"{self._path}: ends before step {step}, which checkpoint {checkpoint} holds")

    def _append(self, record: Record) -> None:
        line = record.line()
        self._may_write()
        tries = count()
        self._patience(self._path, lambda: self._write(line, is_first_try=next(tries) == 0))
        self._records.append(record)
        self._size += len(line)

    def _write(self, line: bytes, *, is_first_try: bool) -> None:
        """Append a line to what counts; of a try that has failed, nothing stays."""
        with self._opened() as descriptor:
            if not is_first_try:
                os.ftruncate(descriptor, self._size)
            written = os.write(descriptor, line)
            if written < len(line):
                os.ftruncate(descriptor, self._size)
                raise OSError(errno.ENOSPC, f"wrote {written} of {len(line)} bytes; is the disk full?")
            os.fsync(descriptor)

    def _keep(self, number: int) -> None:
        self._cut(sum(len(record.line()) for record in self._records[:number]))
        del self._records[number:]

    def _cut(self, size: int) -> None:
        """Shorten the file. A file system does that wholly or not at all, so a kill leaves no half-shortened file."""
        self._may_write()
        self._patience(self._path, lambda: self._truncate(size))
        self._size = size

    def _truncate(self, size: int) -> None:
        with self._opened() as descriptor:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Give the descriptor. After an error it is opened again: a stale handle stays stale."""
        descriptor = self._open()
        try:
            yield descriptor
        except OSError:
            self._descriptor = None
            with suppress(OSError):
                os.close(descriptor)
            raise

    def _open(self) -> int:
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, PRIVATE)
        return self._descriptor


def outstanding(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the prompts that were issued and not consumed, oldest first."""
    consumed = {uid for record in records if record.event == "consumed" for uid in record.prompts}
    issued = (uid for record in records if record.event == "issued" for uid in record.prompts)
    return tuple(uid for uid in issued if uid not in consumed)


@dataclass
class _Audit:
    """Goes through a journal and says what contradicts the records before."""

    expected: Iterator[str]
    waiting: set[str] = field(default_factory=set)
    steps: int = 0

    def fault(self, record: Record) -> str | None:
        match record.event:
            case "issued":
                return self._issued(record.prompts)
            case "consumed":
                return self._consumed(record.step, record.prompts)
            case "committed":
                return None if record.step == self.steps else f"commit of step {record.step} after {self.steps} steps"

    def _issued(self, prompts: Sequence[str]) -> str | None:
        for uid in prompts:
            wanted = next(self.expected, None)
            if uid != wanted:
                return f"issued prompt {uid} where {wanted} was next"
            self.waiting.add(uid)
        return None

    def _consumed(self, step: int, prompts: Sequence[str]) -> str | None:
        if step != self.steps:
            return f"consumed step {step} where {self.steps} was next"
        self.steps += 1
        for uid in prompts:
            if uid not in self.waiting:
                return f"consumed prompt {uid}, which was not issued or was consumed before"
            self.waiting.remove(uid)
        return None


def _parsed(line: bytes, place: str) -> Record:
    try:
        raw = json.loads(line)
        record = Record(raw["event"], raw["step"], tuple(raw.get("prompts", ())), raw.get("checkpoint"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalError(f"{place}: not a journal record: {line!r:.100}") from error
    if record.line() != line + b"\n":
        raise JournalError(f"{place}: not a journal record: {line!r:.100}")
    return record
