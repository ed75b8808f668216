"""Finds and removes what a run leaves on this machine: processes, scratch files, shared memory.

Every process of a run carries `RLJOB_RUN=<id>` in its environment, which children inherit (Ray's workers from the
raylet, SGLang's processes from their server), so that a run is found also when every one of its parents was killed.
Called at the start and at the end of `rljob run`, between two attempts, and by the guard (`guard.py`). Never touches a
process of another run. Knows neither Ray nor torch.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rljob_api.control import ADDRESS_FILE
from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.processes.keeper import mapped, noted

log = logging.getLogger(__name__)

RUN_VARIABLE = "RLJOB_RUN"
SCRATCH_ROOT = Path("/tmp")  # short on purpose: paths of unix sockets end at 107 bytes
SHARED_MEMORY = Path("/dev/shm")

GRACE_S = 3.0
"""between SIGTERM and SIGKILL [s]"""
DEADLINE_S = 20.0
"""after which processes that are still there are reported [s]"""


class LeftoverError(RunError, RuntimeError):
    """Something of a run could not be removed; the text names it."""

    exit = Exit.FAILED


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What `clean` removed."""

    processes: tuple[str, ...]
    """`NAME (pid PID)`"""
    files: tuple[Path, ...]


def run_id(directory: Path) -> str:
    """Return the identity of the run in this directory: the same for every attempt, another one for every directory."""
    return hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]


def scratch(run: str) -> Path:
    """Return the directory for the temporary files of a run: Ray's sessions, unix sockets."""
    return SCRATCH_ROOT / f"rljob-{run}"


def shared_memory(run: str) -> Path:
    """Return the directory for what processes of a run share through memory, for example weights."""
    return SHARED_MEMORY / f"rljob-{run}"


def environment(run: str) -> dict[str, str]:
    """Return the variables that every process of a run carries."""
    return {
        RUN_VARIABLE: run,
        "TMPDIR": str(scratch(run)),
        # Without it, a process that sets its title (Ray's agents, SGLang's schedulers) overwrites its environment.
        "SPT_NOENV": "1",
    }


def find(run: str) -> list[psutil.Process]:
    """Return the living processes of a run and what they started, without this process."""
    marked = [process for process in psutil.process_iter() if _carries(process, run)]
    below = {child for process in marked for child in _descendants(process)}
    return sorted({*marked, *below} - {psutil.Process()}, key=lambda process: process.pid)


def clean(run: str, directory: Path, grace_s: float = GRACE_S) -> Cleaned:
    """Kill the processes of a run, and remove its scratch files, its shared memory and its control address.

    Returns when all of it is gone; raises LeftoverError if a process does not go away.
    """
    deadline = time.monotonic() + DEADLINE_S
    killed: dict[int, str] = {}
    mappings: set[str] = set()
    while processes := find(run):
        if time.monotonic() > deadline:
            raise LeftoverError(f"run {directory}: processes {[p.pid for p in processes]} do not go away")
        killed |= {process.pid: f"{_name(process)} (pid {process.pid})" for process in processes}
        mappings |= {path for process in processes for path in mapped(process.pid)}
        _kill(processes, grace_s)
    for left in scratch(run).glob("rljob-*"):  # by keepers that were killed together with their servers
        mappings |= noted(left)
    candidates = [scratch(run), shared_memory(run), directory / ADDRESS_FILE, *map(Path, sorted(mappings))]
    files = tuple(path for path in candidates if path.exists())
    for path in files:
        _remove(path)
    if killed or files:
        log.info("action=clean run=%s processes=%s files=%s", run, list(killed.values()), [str(path) for path in files])
    return Cleaned(tuple(killed.values()), files)


def _carries(process: psutil.Process, run: str) -> bool:
    try:
        return process.environ().get(RUN_VARIABLE) == run
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [child for child in process.children(recursive=True) if not _is_zombie(child)]
    except psutil.NoSuchProcess:
        return []


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "ended"


def _kill(processes: Sequence[psutil.Process], grace_s: float) -> None:
    for process in processes:
        _signal(process, force=False)
    _, stubborn = psutil.wait_procs(processes, timeout=grace_s)
    for process in stubborn:
        _signal(process, force=True)
    psutil.wait_procs(stubborn, timeout=grace_s)


def _signal(process: psutil.Process, force: bool) -> None:
    try:
        if force:
            process.kill()
        else:
            process.terminate()
    except (psutil.NoSuchProcess, psutil.AccessDenied) as error:
        log.debug("action=signal pid=%d skipped: %s", process.pid, error)


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise LeftoverError(f"remove {path}: {error}") from error


def create_scratch(run: str) -> Path:
    """Make the empty scratch directory of a run, for its user only, and return it.

    Raises LeftoverError when another user has put something at that path.
    """
    path = scratch(run)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LeftoverError(f"make {path}: {error}") from error
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise LeftoverError(f"{path} belongs to another user")
    return path
