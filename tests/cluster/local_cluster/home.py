"""Directories of clusters: one for each, marked with its owner, so that what a killed run left is found and removed.

A cluster's directory holds all that it writes (data, logs, certificates, sockets); its path is also the mark that its
processes carry.
"""

import getpass
import logging
import shutil
import tempfile
from pathlib import Path

import psutil

from local_cluster.processes import stop_all

log = logging.getLogger(__name__)

OWNER_FILE = "owner"
"""holds `PID CREATED` of the process whose end makes the cluster a leftover; without it the cluster stays until told"""


def root() -> Path:
    """Return the directory of all clusters of this user: short, because paths of unix sockets end at 107 bytes."""
    return Path(tempfile.gettempdir()) / f"rljob-clusters-{getpass.getuser()}"


def owned_directory() -> Path:
    """Make and return a directory for a cluster that belongs to this process."""
    root().mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="session-", dir=root()))
    (directory / OWNER_FILE).write_text(_identity(psutil.Process()))
    return directory


def remove(directory: Path) -> list[str]:
    """Stop every process of the cluster in this directory, remove the directory, and return what was stopped."""
    stopped = stop_all(directory)
    shutil.rmtree(directory, ignore_errors=True)
    log.info("action=remove cluster=%s processes=%s", directory, stopped)
    return stopped


def remove_orphans() -> list[Path]:
    """Remove the clusters whose owner has ended, and return their directories."""
    orphans = [directory for directory in sorted(root().glob("*")) if _is_orphan(directory)]
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
