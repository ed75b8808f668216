"""What a run directory says of its run: job, progress, owner, size, and whether it is in use. It only reads.

    driver.json, supervisor.lock  ─► who works there, or did last
    events.jsonl                  ─► job, steps, outcome
    all that lies in it           ─► size, last change

Users of a volume may put there what they want: no link is followed, and no pipe is waited for.
"""

import os
import pwd
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from rljob_cli.run.rundir import in_use
from rljob_cli.terminal.formats import age
from rljob_cli.volume.extent import Budget, Extent, extent
from rljob_operator.job.retention import ALIVE_S
from rljob_trainer.reporting import events
from rljob_trainer.reporting.records import CheckpointRecord, EndRecord, ReadyRecord, RunRecord, StepRecord
from rljob_trainer.rundir import fence

MOST_READ = 16 * 2**20
"""of the events: the last of them say how far a run is [bytes]"""
LONGEST_LINE = 2**20
LAST_LINES = 100
MOST_NAME = 4096
"""of `driver.json` [bytes]"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, by its events."""

    job: str
    namespace: str
    step: int
    steps: int
    outcome: str | None
    """`finished`, `stopped` or `failed`; None: its last attempt has written no end"""


@dataclass(frozen=True, slots=True)
class RunOnDisk:
    """A run directory."""

    path: Path
    identity: tuple[int, int]
    """device and inode: what has the path later may be something else"""
    progress: Progress | None
    """None: no driver has begun, or the events cannot be read"""
    owner: str
    """user of the directory: name, or number if it has no name here"""
    origin: str
    """uid of the RLJob, or a word for one call of `rljob run`; empty: unknown"""
    attempt: int | None
    extent: Extent
    in_use: str
    """by what; empty: by nothing that leaves a sign in the directory"""

    @property
    def outcome(self) -> str:
        """How the last attempt ended, `running`, or `unknown`: it died, or waits in a cluster."""
        if self.progress and self.progress.outcome:
            return self.progress.outcome
        return "running" if self.in_use else "unknown"


def is_run(directory: Path) -> bool:
    """Return whether a directory is a run's: a driver has left its name or its events there."""
    if _name(directory) is not None:
        return True
    try:
        return isinstance(_record(_lines(directory / events.FILE_NAME, most=0)[0]), RunRecord)
    except (OSError, events.EventsError):
        return False


def looked_at(directory: Path, budget: Budget, now: float) -> RunOnDisk:
    """Return what a run directory says at `now` [unix s]. Raises OSError if it is not there."""
    found = directory.lstat()
    name = _name(directory)
    lies_there = extent(directory, budget)
    return RunOnDisk(
        path=directory,
        identity=(found.st_dev, found.st_ino),
        progress=progress(directory),
        owner=_user(found.st_uid),
        origin=name.origin if name else "",
        attempt=name.attempt if name else None,
        extent=lies_there,
        in_use=used_by(directory, lies_there, now),
    )


def used_by(directory: Path, lies_there: Extent, now: float) -> str:
    """Return by what a directory is used; empty: by nothing that leaves a sign."""
    if in_use(directory):
        return "rljob run"
    beat = lies_there.beats[-1] if lies_there.beats else None
    if beat is None or now - beat > ALIVE_S:
        return ""
    return f"a driver, {age(now - beat)} ago"


def progress(directory: Path) -> Progress | None:
    """Return how far a run is; None: no driver has begun, or the events cannot be read."""
    try:
        lines = _lines(directory / events.FILE_NAME, MOST_READ)
        started = max((place for place, line in enumerate(lines) if line.startswith(b'{"kind":"run",')), default=0)
        run = _record(lines[started])
        last = [*events.records(lines[started + 1 :][-LAST_LINES:], events.FILE_NAME)]
    except (OSError, events.EventsError):
        return None
    if not isinstance(run, RunRecord):
        return None
    counted = [each for each in last if isinstance(each, StepRecord | CheckpointRecord | EndRecord | ReadyRecord)]
    ends = [each.outcome for each in last if isinstance(each, EndRecord)]
    return Progress(
        job=run.job,
        namespace=_namespace(run),
        step=max((each.step for each in counted), default=run.step),
        steps=run.steps,
        outcome=ends[-1] if ends else None,
    )


def _namespace(run: RunRecord) -> str:
    metadata = run.manifest.get("metadata")
    named = metadata.get("namespace") if isinstance(metadata, dict) else None
    return named if isinstance(named, str) else ""


def _lines(path: Path, most: int) -> Sequence[bytes]:
    """Return the first line of a file, and whole lines at its end, of at most `most` bytes."""
    with opened(path) as file:
        first = file.readline(LONGEST_LINE)
        place = file.seek(0, os.SEEK_END)
        begin = max(len(first), place - most)
        file.seek(begin)
        rest = file.read(most).splitlines(keepends=True)
    return [first, *(rest if begin == len(first) else rest[1:])]


def _record(line: bytes) -> object:
    return next(events.records([line], events.FILE_NAME), None)


def _name(directory: Path) -> fence.Name | None:
    try:
        with opened(directory / fence.FILE_NAME) as file:
            return fence.name_in(file.read(MOST_NAME))
    except OSError:
        return None


def opened(path: Path) -> BinaryIO:
    """Return a file, opened to read. Raises OSError if it is a link, a pipe or no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{path} is not a file")
    return cast(BinaryIO, os.fdopen(descriptor, "rb"))


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
