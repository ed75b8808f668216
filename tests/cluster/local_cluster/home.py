"""Directories of clusters: one for each, so that what a killed run left is found and removed.

A cluster's directory holds all that it writes (data, logs, certificates, sockets); its path is the mark that its
processes carry. A cluster of a test session has a lock that its owner holds, and is a leftover once nobody does; a
named cluster stays until `make cluster-down`.
"""

import fcntl
import getpass
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local_cluster import footprint
from local_cluster.errors import ClusterError
from local_cluster.processes import stop_all

log = logging.getLogger(__name__)

OWNER_FILE = "owner"
"""locked for as long as its owner lives: the kernel knows that exactly, and a clock that is set changes nothing"""


def clusters_of_this_user() -> Path:
    """Make and return the directory of all clusters: short, because paths of unix sockets end at 107 bytes."""
    directory = Path(tempfile.gettempdir()) / f"rljob-clusters-{getpass.getuser()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


@contextmanager
def owned_directory(clusters: Path) -> Iterator[Path]:
    """Yield a new directory for a cluster that belongs to this process and is removed in the end."""
    directory = Path(tempfile.mkdtemp(prefix="session-", dir=clusters))
    unnamed = directory / f"{OWNER_FILE}.new"
    with unnamed.open("w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        unnamed.rename(directory / OWNER_FILE)  # only now: nobody may find it without its lock
        try:
            yield directory
        finally:
            remove(directory)


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
    """Remove the clusters whose owner has ended, unless somebody else is at it, and return their directories."""
    return [directory for directory in sorted(clusters.iterdir()) if _remove_orphan(directory)]


def _remove_orphan(directory: Path) -> bool:
    try:
        owner = (directory / OWNER_FILE).open()
    except (FileNotFoundError, NotADirectoryError):
        return False
    with owner:
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        remove(directory)
    return True
