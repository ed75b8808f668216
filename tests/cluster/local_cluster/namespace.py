"""A network and a mount namespace for a node: its interfaces, rules, mounts and state are seen nowhere else.

The kernel removes all of them with the last process inside, however that ended. One cable leads out: the machine
reaches pods and Services through it, and pods reach the API server.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_cluster import footprint
from local_cluster.errors import ClusterError
from local_cluster.network import Network
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
touch "$1/held"
exec sleep infinity
"""
"""gives the node its own /var/lib, /var/log and /run, in which kubelet, containerd and CNI keep what they know"""


@dataclass(frozen=True, slots=True)
class Namespace:
    """Namespaces that a process of the cluster holds open."""

    state: Path
    """directory whose `lib`, `log` and `run` are /var/lib, /var/log and /run inside"""
    pid: int

    def inside(self, *command: str) -> list[str]:
        """Return the command that runs this one inside."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--", *command]


def make_namespace(directory: Path, network: Network) -> Namespace:
    """Make the namespaces of this cluster's node, and connect them to the machine. Raises ClusterError."""
    state = directory / "node"
    for path, value in KERNEL_TUNABLES.items():
        tunable = state / "tunables" / path
        tunable.parent.mkdir(parents=True, exist_ok=True)
        tunable.write_text(f"{value}\n")
    unshare = ["unshare", "--net", "--mount", "--propagation=private", "sh", "-c", HOLDER, "holder", str(state)]
    holder = start("namespace", unshare, directory, (state / "held").exists)
    wait_ready(holder)
    namespace = Namespace(state, holder.process.pid)
    _connect(namespace, footprint.name(directory), network)
    return namespace


def routes() -> list[str]:
    """Return the destinations that the machine has routes to, less the default."""
    lines = _run("ip", "-4", "route", "show").splitlines()
    return [destination for destination in (line.split()[0] for line in lines) if destination[0].isdigit()]


def _connect(namespace: Namespace, interface: str, network: Network) -> None:
    assert network.node is not None
    _run("ip", "link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", str(namespace.pid))
    _run("ip", "address", "add", f"{network.server}/30", "dev", interface)
    _run("ip", "link", "set", interface, "up")
    _run(*namespace.inside("ip", "address", "add", f"{network.node}/30", "dev", "eth0"))
    _run(*namespace.inside("ip", "link", "set", "eth0", "up"))
    _run(*namespace.inside("ip", "route", "add", "default", "via", network.server))
    for destination in (network.pods, network.services):
        _run("ip", "route", "add", destination, "via", network.node)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
