"""Directories of clusters: one for each, so that what a killed run left is found and removed.

A cluster's directory holds all that it writes (data, logs, certificates, sockets); its path is the mark that its
processes carry. A cluster of a test session is marked with its owner and is a leftover once that process has ended; a
named cluster stays until it is told to go.
"""

import fcntl
import getpass
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from local_cluster import footprint
from local_cluster.errors import ClusterError
from local_cluster.processes import stop_all

log = logging.getLogger(__name__)

OWNER_FILE = "owner"
"""holds `PID CREATED` of the owner"""


def clusters_of_this_user() -> Path:
    """Make and return the directory of all clusters: short, because paths of unix sockets end at 107 bytes."""
    directory = Path(tempfile.gettempdir()) / f"rljob-clusters-{getpass.getuser()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def owned_directory(clusters: Path) -> Path:
    """Make and return a directory for a cluster that belongs to this process."""
    directory = Path(tempfile.mkdtemp(prefix="session-", dir=clusters))
    (directory / OWNER_FILE).write_text(_identity(psutil.Process()))
    return directory


def require_room(directory: Path, gib: float) -> None:
    """Raise ClusterError unless so much of the directory's disk is free [GiB]."""
    free = shutil.disk_usage(directory).free / 2**30
    if free < gib:
        raise ClusterError(
            f"{directory.parent}: {free:.0f} GiB are free, a node needs {gib:g}; TMPDIR names another disk"
        )


@contextmanager
def named_directory(clusters: Path, name: str) -> Iterator[Path]:
    """Yield the directory of a named cluster, which may not exist, while nobody else starts or removes a named one."""
    with (clusters / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield clusters / name


def remove(directory: Path) -> list[str]:
    """Remove the cluster in this directory, running or not, and return the processes that were killed."""
    killed = stop_all(directory)
    footprint.remove(directory)
    if directory.exists():
        shutil.rmtree(directory)
    log.info("action=remove cluster=%s processes=%s", directory, killed)
    return killed


def remove_orphans(clusters: Path) -> list[Path]:
    """Remove the clusters whose owner has ended, and return their directories."""
    orphans = [directory for directory in sorted(clusters.iterdir()) if _is_orphan(directory)]
    for directory in orphans:
        remove(directory)
    return orphans


def _is_orphan(directory: Path) -> bool:
    owner = directory / OWNER_FILE
    if not owner.exists():
        return False
    pid, _, _ = owner.read_text().partition(" ")
    try:
        return _identity(psutil.Process(int(pid))) != owner.read_text()
    except psutil.NoSuchProcess:
        return True


def _identity(process: psutil.Process) -> str:
    return f"{process.pid} {process.create_time()}"
