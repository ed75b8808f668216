"""What nodes put on the machine outside their directories and namespaces: a bridge, and a cgroup and a cable each.

All carry a name that is derived from the cluster's directory, so that they are found after any kill.
"""

import hashlib
import logging
import os
import signal
import subprocess
import time
from pathlib import Path

from local_cluster.errors import ClusterError

log = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")
INTERFACES = Path("/sys/class/net")
DEADLINE_S = 20.0


def name(directory: Path, node: int | None = None) -> str:
    """Return the name of the cluster's bridge, or of the cgroup and the cable of its node with this number.

    The longest has 15 characters, as many as an interface may have.
    """
    return f"rljob-{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}{node or ''}"


def make_cgroup(directory: Path, node: int) -> None:
    """Make the node's cgroup in every hierarchy: the kubelet wants it to exist.

    Raises ClusterError if there is no hierarchy, and OSError if it may not be written.
    """
    unified = (CGROUPS / "cgroup.controllers").exists()
    hierarchies = [CGROUPS] if unified else [path for path in CGROUPS.iterdir() if path.is_dir()]
    if not hierarchies:
        raise ClusterError(f"no cgroups are mounted in {CGROUPS}")
    if unified:
        _give_controllers()
    for hierarchy in hierarchies:
        (hierarchy / name(directory, node)).mkdir(exist_ok=True)  # hierarchies may be links to each other


def remove_cgroups(names: str) -> None:
    """Kill what is in the cgroups whose names match, the containers' processes, and remove the cgroups.

    Raises ClusterError if one stays busy.
    """
    deadline = time.monotonic() + DEADLINE_S
    while left := _cgroups(names):
        for cgroup in left:
            _empty(cgroup)
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {left[0]} cannot be removed: processes {_pids(left[0])} do not go away")
        time.sleep(0.05)


def remove_interfaces(names: str) -> None:
    """Remove the interfaces whose names match. The kernel removes cables too, a little after a node's namespace."""
    for interface in INTERFACES.glob(names):
        subprocess.run(["ip", "link", "delete", interface.name], capture_output=True, check=False)


def remove(directory: Path) -> None:
    """Remove all of it. Raises ClusterError if a cgroup stays busy."""
    remove_cgroups(f"{name(directory)}*")
    remove_interfaces(f"{name(directory)}*")


def _give_controllers() -> None:
    """Let cgroups below the root have all controllers: a machine without systemd gives them none."""
    for controller in (CGROUPS / "cgroup.controllers").read_text().split():
        try:
            (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:  # the kubelet names those that it misses
            log.warning("action=give_controller controller=%s error=%s", controller, error)


def _cgroups(names: str) -> list[Path]:
    """Return the directories of cgroups: one per mounted controller of version 1, or one of version 2."""
    return [path for path in (*CGROUPS.glob(names), *CGROUPS.glob(f"*/{names}")) if path.is_dir()]


def _empty(cgroup: Path) -> None:
    """Kill the processes of a cgroup, and remove it and those below it as far as they are empty."""
    for pid in _pids(cgroup):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for path in sorted((p for p in (cgroup, *cgroup.rglob("*")) if p.is_dir()), reverse=True):
        try:
            path.rmdir()
        except OSError:  # still busy: the caller comes again
            return


def _pids(cgroup: Path) -> list[int]:
    return [int(pid) for file in cgroup.rglob("cgroup.procs") for pid in file.read_text().split()]
