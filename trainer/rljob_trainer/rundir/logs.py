"""The logs in a run's directory: which files they are, and what an attempt has added to them."""

import logging
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rljob_api.known_failure import KnownFailure

log = logging.getLogger(__name__)

SUFFIXES: Final = (".log", ".out", ".err", ".txt", ".jsonl", ".stdout", ".stderr")
"""of files of a directory that are read as logs"""
ATTEMPT = re.compile(r"^driver-attempt-(\d+)\.log$")
STACKS = re.compile(r"^stacks-attempt-(\d+)\.log$")
ROLLOUTS: Final = frozenset({"rollouts", "dumps", "checkpoints", "journal"})
"""folders of a run with data, not logs"""
MOST_READ: Final = 1 << 25
"""bytes at the end of a log that an attempt reads before it ends: a third of a second"""
MOST_FILES: Final = 1000
"""logs of an attempt that are read; those that changed last"""
LONGEST_S: Final = 20.0
"""for all of them [s]; of what is left then, only the ends are judged"""


def is_log(path: Path, root: Path) -> bool:
    """Return whether a file of a directory is read as a log."""
    within = path.relative_to(root).parts[:-1]
    return path.suffix in SUFFIXES and not ROLLOUTS.intersection(within) and path.is_file()


def newest_attempt(files: Iterable[Path]) -> list[Path]:
    """Return the files of a run without the driver's logs of older attempts, the newest driver's log first."""
    files = list(files)
    numbers = {path: int(found[1]) for path in files if (found := ATTEMPT.match(path.name))}
    newest = max(numbers.values(), default=None)
    kept = [
        path
        for path in files
        if numbers.get(path, newest) == newest and path.name != "journal.jsonl" and not STACKS.match(path.name)
    ]
    return sorted(kept, key=lambda path: path not in numbers)


class AttemptLogs:
    """What one attempt adds to the logs of a run. Make it before the attempt begins."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`directory` is the run's; its logs are in `logs`, and it need not exist yet."""
        self._directory = directory / "logs"
        self._clock = clock
        self._old: dict[Path, int] = {}
        self._last: dict[Path, int] = {}
        self._old = self._last = self._sizes()

    def step_finished(self) -> None:
        """Leave out from now on what was logged before the step before this one: the run continued after it.

        Not before this step, because what ends a run may begin while a step ends.
        """
        self._old, self._last = self._last, self._sizes()

    def known_failure(self) -> KnownFailure | None:
        """Return the failure that ended the attempt; None: none is known, or the logs cannot be read."""
        try:
            from rljob_doctor.known import known_failure
            from rljob_doctor.scan import scan
        except ModuleNotFoundError as error:
            log.warning("action=diagnose outcome=failed %s is not installed", error.name)
            return None

        end = self._clock() + LONGEST_S
        try:
            added = ((path.name, content) for path in self._files() if (content := self._added(path)))
            return known_failure([scan(name, content, lambda: self._clock() < end) for name, content in added])
        except OSError as error:
            log.warning("action=diagnose outcome=failed directory=%s: %s", self._directory, error)
            return None

    def _sizes(self) -> dict[Path, int]:
        """Return how long each log is; as long as before, if the volume does not say now."""
        try:
            return {path: _size(path) for path in self._files()}
        except OSError as error:
            log.warning("action=look_at_logs directory=%s outcome=failed: %s", self._directory, error)
            return self._last

    def _files(self) -> list[Path]:
        found = [path for path in sorted(self._directory.rglob("*")) if is_log(path, self._directory)]
        if len(found) > MOST_FILES:
            found = sorted(sorted(found, key=_changed)[-MOST_FILES:])
        return newest_attempt(found)

    def _added(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(max(self._old.get(path, 0), path.stat().st_size - MOST_READ))
            return file.read(MOST_READ)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it was removed just now
        return 0


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
