"""The journal of prompts: which were issued, consumed by the learner, and committed with a checkpoint.

    {"event":"issued","step":0,"prompts":["0:17","0:4"]}
    {"event":"consumed","step":0,"prompts":["0:17","0:4"]}
    {"event":"committed","step":1,"checkpoint":"iter_0000001"}

Steps count from 0 as in the loop; a checkpoint's step says how many are done: `committed` with step 1 covers step 0.
It is noted when the state is copied: a checkpoint that was never complete leaves its line, until a rewind cuts it off.
The file holds no times, so a run that was killed and resumed leaves the same bytes as one that was not. Each line is
flushed to the disk before the call returns; a kill can tear only the last one, which the next opening removes.

A file that is full at a commit moves to `journal/until-STEP.jsonl`, and the next one begins with what it comes to:

    {"event":"continued","step":1,"checkpoint":"iter_0000001","issued":2,"consumed":2,"waiting":[]}

So neither a start nor a step reads or holds what was long ago. All of it stays on the disk: a run goes back to any
checkpoint, and `rljob checkpoint inspect` audits every prompt.
"""

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.private_files import PRIVATE, created, draft_of
from rljob_trainer.rundir import names
from rljob_trainer.rundir.atomic_files import sync_directory
from rljob_trainer.rundir.retries import PATIENT, Patience

FILE_NAME = names.JOURNAL
"""in a run's directory"""
OLDER = names.FULL_JOURNALS
"""beside it: the files that were full"""
FULL = 2**24
"""a longer file is followed by another one at the next commit [bytes]"""
_NAME = re.compile(r"until-\d{7,}\.jsonl")
Event = Literal["issued", "consumed", "committed", "continued"]
Uids = Callable[[int], Iterable[str]]
"""returns the order in which prompts are issued, after this number of them"""


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
    issued: int = 0
    consumed: int = 0
    """prompts before a line `continued`"""
    waiting: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """of each step, prompts that were issued before it and not consumed"""

    def line(self) -> bytes:
        """Return the line that stands for the record."""
        what: dict[str, Any]
        match self.event:
            case "issued" | "consumed":
                what = {"prompts": self.prompts}
            case "committed":
                what = {"checkpoint": self.checkpoint}
            case "continued":
                what = {"checkpoint": self.checkpoint, "issued": self.issued, "consumed": self.consumed}
                what["waiting"] = self.waiting
        return json.dumps({"event": self.event, "step": self.step} | what, separators=(",", ":")).encode() + b"\n"


def recorded(path: Path) -> tuple[list[Record], int]:
    """Return the records of a file, oldest first, and the size of a torn last line [bytes].

    Raises JournalError if a line before it is damaged.
    """
    records = [record for record, _ in read(path)]
    return records, path.stat().st_size - sum(len(record.line()) for record in records)


def read(path: Path) -> Iterator[tuple[Record, int]]:
    """Yield each record of a file, oldest first, and where it ends [bytes]; a torn last line is left out.

    Raises JournalError if a line before it is damaged.
    """
    end = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield record_of(line.removesuffix(b"\n"), f"{path}:{number}"), end


def record_of(line: bytes, place: str) -> Record:
    """Return the record of a line without its end; raise JournalError, which names the place, if it is none."""
    try:
        raw = json.loads(line)
        record = Record(
            raw["event"],
            raw["step"],
            tuple(raw.get("prompts", ())),
            raw.get("checkpoint"),
            raw.get("issued", 0),
            raw.get("consumed", 0),
            tuple((step, tuple(prompts)) for step, prompts in raw.get("waiting", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalError(f"{place}: not a journal record: {line!r:.100}") from error
    if record.line() != line + b"\n":
        raise JournalError(f"{place}: not a journal record: {line!r:.100}")
    return record


def files(path: Path) -> list[Path]:
    """Return the files of a whole journal, the oldest first; `path` is the newest."""
    try:
        first = next((record for record, _ in read(path)), None)
    except FileNotFoundError:  # a kill came just when it was full
        return _older(path)
    begins = first.step if first is not None and first.event == "continued" else 0
    return [*(older for older in _older(path) if _until(older) <= begins), path]


def audited(records: Iterable[Record], uids: Uids | None = None) -> Iterator[str]:
    """Yield `NUMBER: what is wrong` for each record that contradicts those before it.

    `uids` says in which order prompts must have been issued; absent: in any, each of them once.
    """
    audit = Audit(uids)
    for number, record in enumerate(records, 1):
        if fault := audit.fault(record):
            yield f"{number}: {fault}"


@dataclass
class Sum:
    """What the records of a journal come to, from its beginning."""

    steps: int = 0
    """that were consumed"""
    issued: int = 0
    consumed: int = 0
    """prompts, counted as often as they were issued"""
    waiting: dict[str, int] = field(default_factory=dict)
    """prompts that were issued and not consumed, oldest first -> their step"""

    def add(self, record: Record) -> None:
        """Add a record."""
        match record.event:
            case "issued":
                self.issued += len(record.prompts)
                self.waiting.update(dict.fromkeys(record.prompts, record.step))
            case "consumed":
                self.steps = record.step + 1
                self.consumed += len(record.prompts)
                for uid in record.prompts:
                    self.waiting.pop(uid, None)
            case "committed":
                pass
            case "continued":
                self.steps, self.issued, self.consumed = record.step, record.issued, record.consumed
                self.waiting = {uid: step for step, prompts in record.waiting for uid in prompts}

    def by_step(self) -> dict[int, tuple[str, ...]]:
        """Return the waiting prompts of each step."""
        found: dict[int, tuple[str, ...]] = {}
        for uid, step in self.waiting.items():
            found[step] = (*found.get(step, ()), uid)
        return found

    def continued(self, step: int, checkpoint: str) -> Record:
        """Return the first line of a file that continues from a commit."""
        waiting = tuple(self.by_step().items())
        return Record("continued", step, (), checkpoint, self.issued, self.consumed, waiting)


class Journal:
    """An open journal. Every method that writes has reached the disk when it returns."""

    def __init__(
        self,
        path: Path,
        may_write: Callable[[], None] = lambda: None,
        patience: Patience = PATIENT,
        full: int = FULL,
    ) -> None:
        """Open or create the file and read it; raise JournalError if a line before the last is damaged.

        `may_write` is asked before each change and raises if this process must not make it. Every method that writes
        raises StorageError if the volume does not take it. A file of `full` bytes is followed by another one.
        """
        self._path = path
        self._may_write = may_write
        self._patience = patience
        self._full = full
        self._descriptor: int | None = None
        patience(path, self._bring_back)
        patience(path, self._open)
        if patience(path, self._read) > self._size:
            self._cut(self._size)

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of the newest file, oldest first, as they are on the disk."""
        return tuple(record for record, _ in read(self._path))

    @property
    def issued_count(self) -> int:
        """Prompts issued so far: `PromptStream.position_after` of it is where the stream continues."""
        return self._sum.issued

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Prompts issued and not yet consumed, oldest first: a resumed run asks for them again."""
        return tuple(self._sum.waiting)

    @property
    def waiting(self) -> Mapping[int, tuple[str, ...]]:
        """The outstanding prompts of each step."""
        return self._sum.by_step()

    def issued(self, step: int, prompts: Sequence[str]) -> None:
        """Note that these prompts are about to be sent to engines."""
        self._append(Record("issued", step, tuple(prompts)))

    def consumed(self, step: int, prompts: Sequence[str] | None = None) -> None:
        """Note that the learner has trained on these prompts in `step`; absent: on those issued for it."""
        trained = self._issued_for(step) if prompts is None else tuple(prompts)
        self._append(Record("consumed", step, trained))

    def committed(self, step: int, checkpoint: str) -> None:
        """Note that a checkpoint will hold the state after `step` steps. Noting it twice changes nothing."""
        if (step, checkpoint) not in self._commits:
            self._append(Record("committed", step, checkpoint=checkpoint))
        self._follow(step, checkpoint)

    def rewind(self, step: int, checkpoint: str) -> None:
        """Forget what came after the commit of the checkpoint that holds the state after `step` steps.

        If the run was killed between writing the checkpoint and noting it, note it now. With step 0 (a fresh start,
        no checkpoint) everything is forgotten. Raises JournalError when the journal ends before the checkpoint.
        """
        if step == 0:
            self._cut(0)
            self._patience(self._path, self._read)
        else:
            self._go_back(step)
            if (end := self._commits.get((step, checkpoint))) is not None:
                self._keep(end)
            else:
                self._keep(self._end_of(step, checkpoint))
                self._append(Record("committed", step, checkpoint=checkpoint))
        self._forget_later()
        if step:
            self._follow(step, checkpoint)

    def check(self, uids: Uids) -> None:
        """Raise JournalError unless prompts were issued in this order, all of them, and none was consumed twice."""
        for fault in audited((record for record, _ in read(self._path)), uids):
            raise JournalError(f"{self._path}:{fault}")

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _issued_for(self, step: int) -> tuple[str, ...]:
        if not (issued := tuple(uid for uid, of in self._sum.waiting.items() if of == step)):
            raise JournalError(f"{self._path}: step {step} is recorded as consumed, but none of its prompts as issued")
        return issued

    def _end_of(self, step: int, checkpoint: str) -> int:
        """Return where the records end that lead up to the state after `step` steps [bytes]."""
        if (end := self._ends.get(step)) is None:
            raise JournalError(f"{self._path}: ends before step {step - 1}, which checkpoint {checkpoint} holds")
        return end

    def _read(self) -> int:
        """Read the file until `_size`, where a torn last line begins; return the size of the whole file."""
        self._sum = Sum()
        self._size = 0
        """of what counts [bytes]"""
        self._begins = 0
        """steps before this file"""
        self._commits: dict[tuple[int, str], int] = {}
        """(step, checkpoint) -> where its line ends"""
        self._ends: dict[int, int] = {}
        """steps done -> where their lines end, without the commit"""
        for record, end in read(self._path):
            self._note(record, end)
        return self._path.stat().st_size

    def _note(self, record: Record, end: int) -> None:
        self._sum.add(record)
        self._size = end
        match record.event:
            case "issued":
                pass
            case "consumed":
                self._ends.setdefault(record.step + 1, end)
            case "committed":
                self._commits.setdefault((record.step, record.checkpoint or ""), end)
            case "continued":
                self._begins = record.step
                self._ends[record.step] = end
                self._commits[record.step, record.checkpoint or ""] = end

    def _append(self, record: Record) -> None:
        line = record.line()
        self._may_write()
        tries = count()
        self._patience(self._path, lambda: self._write(line, is_first_try=next(tries) == 0))
        self._note(record, self._size + len(line))

    def _follow(self, step: int, checkpoint: str) -> None:
        """If the file is full, and ends with this commit, begin another one."""
        if self._size < self._full or self._commits.get((step, checkpoint)) != self._size or self._begins == step:
            return
        self._may_write()
        self._patience(self._path, lambda: self._begin_next(self._sum.continued(step, checkpoint)))
        self._patience(self._path, self._read)

    def _begin_next(self, first: Record) -> None:
        """Move the file away, and put the next one in its place. A kill in between leaves none: see `_bring_back`."""
        older = self._path.with_name(OLDER)
        older.mkdir(mode=0o700, exist_ok=True)
        draft = draft_of(self._path)
        with created(draft) as file:
            file.write(first.line())
            file.flush()
            os.fsync(file.fileno())
        self.close()
        if not (full := older / names.full_journal(first.step)).exists():  # else: another try of this
            self._path.rename(full)
            sync_directory(older)
        draft.rename(self._path)
        sync_directory(self._path.parent)

    def _bring_back(self) -> None:
        """Put the newest full file back if a kill came before the next one was in its place."""
        if not self._path.exists() and (older := _older(self._path)):
            self._may_write()
            older[-1].rename(self._path)

    def _go_back(self, step: int) -> None:
        """Go back to the file that holds the commit of a step."""
        if step >= self._begins:
            return
        full = next((older for older in _older(self._path) if _until(older) >= step), None)
        if full is None:
            raise JournalError(f"{self._path}: begins after step {self._begins}, and {OLDER}/ has no file with {step}")
        self._may_write()
        self.close()
        self._patience(self._path, lambda: full.replace(self._path) if full.exists() else None)
        self._patience(self._path, self._read)

    def _forget_later(self) -> None:
        """Remove full files with what a rewind has forgotten."""
        for older in _older(self._path):
            if _until(older) > self._begins:
                self._may_write()
                self._patience(older, lambda older=older: older.unlink(missing_ok=True))  # type: ignore[misc]

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

    def _keep(self, end: int) -> None:
        if end < self._size:
            self._cut(end)
            self._patience(self._path, self._read)

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


class Audit:
    """Goes through a journal and says what contradicts the records before."""

    def __init__(self, uids: Uids | None = None) -> None:
        """`uids` says in which order prompts must have been issued; absent: in any, each of them once."""
        self._uids = uids
        self._expected = None if uids is None else iter(uids(0))
        self._seen = _Seen()
        self._is_begun = False
        self.sum = Sum()

    def fault(self, record: Record) -> str | None:
        """Return what is wrong with the next record, if anything."""
        fault = self._fault(record)
        self._is_begun = True
        self.sum.add(record)
        return fault

    def _fault(self, record: Record) -> str | None:
        match record.event:
            case "issued":
                return next(filter(None, map(self._wrong_issue, record.prompts)), None)
            case "consumed":
                return self._wrong_consumption(record.step, record.prompts)
            case "committed":
                known = self.sum.steps
                return None if record.step == known else f"commit of step {record.step} after {known} steps"
            case "continued":
                return self._wrong_continuation(record)

    def _wrong_issue(self, uid: str) -> str | None:
        if self._expected is None:
            return None if self._seen.is_new(uid) else f"issued prompt {uid}, which was issued before"
        wanted = next(self._expected, None)
        return None if uid == wanted else f"issued prompt {uid} where {wanted} was next"

    def _wrong_consumption(self, step: int, prompts: Sequence[str]) -> str | None:
        if step != self.sum.steps:
            return f"consumed step {step} where {self.sum.steps} was next"
        twice = Counter(prompts)
        for uid in prompts:
            if uid not in self.sum.waiting or twice[uid] > 1:
                return f"consumed prompt {uid}, which was not issued or was consumed before"
        return None

    def _wrong_continuation(self, record: Record) -> str | None:
        if self._is_begun:
            said = self.sum.continued(self.sum.steps, record.checkpoint or "")
            return None if said == record else f"continues with other prompts than those before step {record.step}"
        if self._uids is not None:
            self._expected = iter(self._uids(record.issued))
        return None


class _Seen:
    """Knows which prompts were issued, in the memory of one epoch: `EPOCH:ROW`, whose epochs follow each other."""

    def __init__(self) -> None:
        self._epoch = ""
        self._rows: set[str] = set()

    def is_new(self, uid: str) -> bool:
        """Return whether a prompt was not issued before, and remember it."""
        epoch, _, row = uid.rpartition(":")
        if epoch != self._epoch:
            if (len(epoch), epoch) < (len(self._epoch), self._epoch):
                return False
            self._epoch, self._rows = epoch, set()
        is_new = row not in self._rows
        self._rows.add(row)
        return is_new


def _older(path: Path) -> list[Path]:
    """Return the files that were full, the oldest first."""
    named = (each for each in path.with_name(OLDER).glob("until-*.jsonl") if _NAME.fullmatch(each.name))
    return sorted(named, key=_until)


def _until(path: Path) -> int:
    """Return how many steps are done at the end of a full file."""
    return int(path.stem.removeprefix("until-"))
