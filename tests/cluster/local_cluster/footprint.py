"""What a node puts on the machine outside its directory and its namespaces: a cgroup, and one end of a network cable.

Both carry a name that is derived from the directory, so that they are found after any kill.
"""

import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path

from local_cluster.errors import ClusterError

CGROUPS = Path("/sys/fs/cgroup")
INTERFACES = Path("/sys/class/net")
DEADLINE_S = 20.0


def name(directory: Path) -> str:
    """Return the name of the cluster's cgroup and interface; interfaces' names end at 15 characters."""
    return f"rljob-{hashlib.sha256(str(directory).encode()).hexdigest()[:8]}"


def cgroups(directory: Path) -> list[Path]:
    """Return the directories of the cluster's cgroup: one per mounted controller of version 1, or one of version 2."""
    return [path for path in (CGROUPS / name(directory), *CGROUPS.glob(f"*/{name(directory)}")) if path.is_dir()]


def make_cgroup(directory: Path) -> str:
    """Make the cluster's cgroup in every hierarchy, and return its path: the kubelet wants it to exist.

    Raises ClusterError if there is no hierarchy, and OSError if it may not be written.
    """
    unified = (CGROUPS / "cgroup.controllers").exists()
    hierarchies = [CGROUPS] if unified else [path for path in CGROUPS.iterdir() if path.is_dir()]
    if not hierarchies:
        raise ClusterError(f"no cgroups are mounted in {CGROUPS}")
    for hierarchy in hierarchies:
        (hierarchy / name(directory)).mkdir(exist_ok=True)  # hierarchies may be links to each other
    return f"/{name(directory)}"


def remove(directory: Path) -> None:
    """Kill what is in the cluster's cgroup, the containers' processes, and remove cgroup and interface.

    Raises ClusterError if the cgroup stays busy.
    """
    deadline = time.monotonic() + DEADLINE_S
    while left := cgroups(directory):
        for cgroup in left:
            _empty(cgroup)
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {left[0]} cannot be removed: processes {_pids(left[0])} do not go away")
        time.sleep(0.05)
    if (INTERFACES / name(directory)).exists():  # the kernel removes it too, a little after its namespace
        subprocess.run(["ip", "link", "delete", name(directory)], capture_output=True, check=False)


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
