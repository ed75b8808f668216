"""A network and a mount namespace for a node: its interfaces, rules, mounts and state are seen nowhere else.

The kernel removes all of them with the last process inside, however that ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.processes import start, wait_ready

KERNEL_TUNABLES: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""what the kubelet would set, for the whole machine, if it did not read these"""

HOLDER_FILE = "holder"
"""has the pid of the process that holds the namespaces open; there while the node is on"""
HOLDER = """
set -e
mkdir -p "$1/lib" "$1/log" "$1/run"
mount --bind "$1/lib" /var/lib
mount --bind "$1/log" /var/log
mount --bind "$1/run" /run
for file in $(cd "$1/tunables" && find . -type f); do mount --bind "$1/tunables/$file" "/proc/sys/$file"; done
mount --make-rshared /
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo $$ > "$1/$2.new"
mv "$1/$2.new" "$1/$2"
exec sleep infinity
"""
"""gives the node its own /var/lib, /var/log and /run, in which kubelet, containerd and CNI keep what they know"""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Namespaces that a process of the cluster holds open."""

    state: Path
    """directory of the node, whose `lib`, `log` and `run` are /var/lib, /var/log and /run inside"""
    pid: int

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs this one inside."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--", *command]


def make_namespace(state: Path) -> Namespace:
    """Make the namespaces of the node that keeps its state in this directory. Raises ClusterError."""
    for path, value in KERNEL_TUNABLES.items():
        tunable = state / "tunables" / path
        tunable.parent.mkdir(parents=True, exist_ok=True)
        tunable.write_text(f"{value}\n")
    unshare = ["unshare", "--net", "--mount", "--propagation=private"]
    holder = start(
        "namespace", [*unshare, "sh", "-c", HOLDER, "holder", str(state), HOLDER_FILE], state, lambda: is_on(state)
    )
    wait_ready(holder)
    return namespace_of(state)


def is_on(state: Path) -> bool:
    """Return whether the node of this directory has its namespaces."""
    return (state / HOLDER_FILE).exists()


def namespace_of(state: Path) -> Namespace:
    """Return the namespaces of the node of this directory; raise ClusterError if the node is off."""
    if not is_on(state):
        raise ClusterError(f"{state.name} is off")
    return Namespace(state, int((state / HOLDER_FILE).read_text()))
