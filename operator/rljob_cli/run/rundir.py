"""The directory of a run on this machine: its files, and the lock that admits one supervisor at a time."""

import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from rljob_api.control import ADDRESS_FILE, DRIVER_LOG
from rljob_api.sections import RLJob
from rljob_trainer.data.foreign_files import no_directory
from rljob_trainer.private_files import changed, private_directory

log = logging.getLogger(__name__)

LOCK = "supervisor.lock"
GUARD_FINISHES_S = 30.0
"""time for a guard to clean up after a killed supervisor [s]"""


class RunDirectoryError(RuntimeError):
    """The run's directory cannot be created or written; the text names the path and the reason."""


class RunLockedError(RuntimeError):
    """Another supervisor uses this directory; the text gives its pid."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where the files of one run are."""

    path: Path

    @property
    def address(self) -> Path:
        """Where the driver's control server listens."""
        return self.path / ADDRESS_FILE

    @property
    def events(self) -> Path:
        """What happened, a JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def report(self) -> Path:
        """What people read afterwards."""
        return self.path / "report.html"

    @property
    def manifest(self) -> Path:
        """The manifest as it was when the run started: every attempt uses this copy."""
        return self.path / "manifest.yaml"

    @property
    def supervisor_log(self) -> Path:
        """What `rljob run` itself noticed and did."""
        return self.path / "logs" / "supervisor.log"

    def log(self, attempt: int) -> Path:
        """Return the log of one start of the driver."""
        return self.path / DRIVER_LOG.format(attempt=attempt)

    def next_attempt(self) -> int:
        """Return the number of the next start of the driver, counted over all runs in this directory."""
        numbers = [re.fullmatch(r"driver-attempt-(\d+)\.log", path.name) for path in self.path.glob("logs/*")]
        return max((int(number[1]) for number in numbers if number), default=0) + 1


def rundir(job: RLJob) -> RunDirectory:
    """Return the directory of the job, which is made if it does not exist. Raises RunDirectoryError."""
    directory = run_directory(job)
    path = directory.path
    try:
        private_directory(path)
        (path / "logs").mkdir(exist_ok=True)
        changed(path / LOCK).close()
    except OSError as error:
        fault = None if path.is_dir() else no_directory(path)
        reason = fault or f"cannot be used: {error.strerror}; a directory that you may write is expected"
        raise RunDirectoryError(f"spec.checkpoint.directory: {path} {reason}") from error
    return directory


def run_directory(job: RLJob) -> RunDirectory:
    """Return the directory of the job, which may not exist."""
    return RunDirectory(Path(job.spec.checkpoint.directory or Path("runs") / job.metadata.name).resolve())


@contextmanager
def locked(directory: RunDirectory) -> Iterator[int]:
    """Hold the directory for this process and those that inherit the file descriptor, which is yielded.

    Raises RunLockedError at once while another supervisor lives; if that was killed, waits until its guard has cleaned.
    """
    with changed(directory.path / LOCK) as file:
        deadline = time.monotonic() + GUARD_FINISHES_S
        while not _acquired(file.fileno()):
            file.seek(0)
            holder = int(file.read() or 0)
            if _alive(holder) or time.monotonic() > deadline:
                raise RunLockedError(f"{directory.path}: already in use by `rljob run` with pid {holder}")
            log.info("action=wait lock=%s reason=GuardCleans", directory.path)
            time.sleep(0.2)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()).encode())
        file.flush()
        yield file.fileno()


def in_use(directory: Path) -> bool | None:
    """Return whether `rljob run` works in a directory; None: it is not one of this machine's runs."""
    try:
        with _lock_of(directory, os.O_RDONLY) as file:
            return not _acquired(file.fileno())
    except OSError:
        return None


@contextmanager
def kept_free(directory: Path) -> Iterator[None]:
    """Keep `rljob run` out of a directory, unless it is none of its runs. Raises RunLockedError, OSError."""
    try:
        file = _lock_of(directory, os.O_RDWR)
    except FileNotFoundError:  # a run of a cluster
        yield
        return
    with file:
        if not _acquired(file.fileno()):
            raise RunLockedError(f"{directory}: `rljob run` works there")
        yield


def _lock_of(directory: Path, mode: int) -> BinaryIO:
    """Return the lock, opened. Others may write into the directory: no link is followed, no pipe waited for."""
    descriptor = os.open(directory / LOCK, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return cast(BinaryIO, os.fdopen(descriptor, "rb" if mode == os.O_RDONLY else "r+b", buffering=0))


def _acquired(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(pid: int) -> bool:
    if pid == 0:  # the holder has the lock and has not written its number yet
        return True
    import psutil  # only `rljob run` locks a directory

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
