"""Starts the processes of a cluster, finds them again, and stops them.

Each carries `RLJOB_CLUSTER=<directory>` in its environment, which its children inherit: the directory of the cluster,
or below it that of a node. A file of pids would miss what was started between a fork and a kill of us, and would name a
stranger once its number is used again.
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from local_cluster.errors import ClusterError

log = logging.getLogger(__name__)

CLUSTER_VARIABLE = "RLJOB_CLUSTER"
GONE_S = 5.0
"""within which a killed process is gone [s]"""
DEADLINE_S = 90.0
"""for a process to get ready: a machine that is busy with other tests takes twenty times as long as usual [s]"""
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """A process of the cluster."""

    name: str
    process: subprocess.Popen[bytes]
    log_file: Path
    is_ready: Callable[[], bool]


def start(
    name: str,
    command: Sequence[str],
    directory: Path,
    is_ready: Callable[[], bool],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Started:
    """Start a process of the cluster in this directory, in a session of its own, writing to `logs/NAME.log`.

    It outlives us, also when we are killed: `stop_all` finds it.
    """
    log_file = directory / "logs" / f"{name}.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **variables, CLUSTER_VARIABLE: str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Linux shows a new program's environment a moment after it has begun: until then `find` would not see it.
    for _ in range(1000):
        if process.poll() is not None or _carries(psutil.Process(process.pid), directory):
            break
        time.sleep(0.001)
    log.info("action=start program=%s pid=%d log=%s", name, process.pid, log_file)
    return Started(name, process, log_file, is_ready)


def wait_ready(started: Started, deadline_s: float = DEADLINE_S) -> None:
    """Return when the process is ready; raise ClusterError with the end of its log if it ends, or is late."""
    deadline = time.monotonic() + deadline_s
    while not started.is_ready():
        if started.process.poll() is not None:
            raise ClusterError(
                f"{started.name} ended with {started.process.returncode} before it was ready{_tail(started)}"
            )
        if time.monotonic() > deadline:
            raise ClusterError(f"{started.name} is not ready after {deadline_s:.0f} s{_tail(started)}")
        time.sleep(POLL_S)


def find(directory: Path) -> list[psutil.Process]:
    """Return the living processes of the cluster or node in this directory, without this process."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _carries(process, directory)]


def stop_all(directory: Path) -> list[str]:
    """Kill every process of the cluster or node in this directory and return `NAME (pid PID)` of each.

    At once: its data goes with it, and a polite kube-apiserver waits for its clients. Raises ClusterError if one does
    not go away.
    """
    stopped: list[str] = []
    # Again until none is left: a process may fork while we look.
    for _ in range(5):
        processes = find(directory)
        if not processes:
            return stopped
        stopped += [f"{_name(process)} (pid {process.pid})" for process in processes]
        for process in processes:
            _kill(process)
        psutil.wait_procs(processes, timeout=GONE_S)
    raise ClusterError(
        f"processes {[process.pid for process in find(directory)]} of cluster {directory} do not go away"
    )


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        log.debug("pid=%d ended by itself", process.pid)


def _carries(process: psutil.Process, directory: Path) -> bool:
    try:
        mark = process.environ().get(CLUSTER_VARIABLE)
        return mark is not None and Path(mark).is_relative_to(directory) and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # ended meanwhile, or another user's
        return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return "?"


def _tail(started: Started) -> str:
    lines = started.log_file.read_text(errors="replace").splitlines()[-15:]
    return "\n".join([f"; the end of {started.log_file}:", *lines])
