"""The GPUs of a node: counted, on a machine that needs none, or those of this machine."""

import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from local_cluster import device_plugin
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from local_cluster.processes import start, wait_ready

RESOURCE = device_plugin.RESOURCE
DEVICES = Path("/dev")
SOCKETS = Path("lib/kubelet/device-plugins")
"""in the directory of a node: where its kubelet finds device plugins"""


class Gpus(Protocol):
    """GPUs that Kubernetes can give to the pods of one node."""

    def attach(self, node: str, directory: Path, kubectl: Kubectl) -> None:
        """Return when the node of this name and directory, which is ready, has them. Raises ClusterError."""


@dataclass(frozen=True, slots=True)
class CountedGpus:
    """The node says that it has so many; no pod finds one."""

    number: int

    def attach(self, node: str, directory: Path, kubectl: Kubectl) -> None:
        """Write the number into the node's status."""
        amount = {RESOURCE: str(self.number)}
        patch = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
        kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")


@dataclass(frozen=True, slots=True)
class MachineGpus:
    """GPUs of this machine, which a device plugin offers to the node's kubelet."""

    indexes: tuple[int, ...]
    """of /dev/nvidiaINDEX"""

    def attach(self, node: str, directory: Path, kubectl: Kubectl) -> None:
        """Start the device plugin, and wait until pods can be given all of them."""
        given = [str(index) for index in self.indexes]
        command = [sys.executable, "-m", device_plugin.__name__, str(directory / SOCKETS), *given]
        variables = {"PYTHONPATH": str(Path(__file__).parents[1])}
        wait_ready(start("gpus", command, directory, lambda: self._are_allocatable(node, kubectl), variables))

    def _are_allocatable(self, node: str, kubectl: Kubectl) -> bool:
        allocatable = kubectl.get("node", node)["status"].get("allocatable", {})
        return int(allocatable.get(RESOURCE, 0)) == len(self.indexes)


def divided(indexes: tuple[int, ...], nodes: int) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of each node: neighbours together, no node with two more than another.

    Raises ClusterError if a node would have none.
    """
    if len(indexes) < nodes:
        raise ClusterError(f"{len(indexes)} GPUs for {nodes} nodes: each needs one; start {max(1, len(indexes))} nodes")
    bounds = [len(indexes) * number // nodes for number in range(nodes + 1)]
    return tuple(indexes[first:last] for first, last in pairwise(bounds))


def indexes_of(given: str | None) -> tuple[int, ...]:
    """Return the indexes in a list such as `0,1`, or those of all GPUs of this machine. Raises ClusterError."""
    names = given.split(",") if given else [path.name.removeprefix("nvidia") for path in DEVICES.glob("nvidia[0-9]*")]
    if not names:
        raise ClusterError(f"{DEVICES} has no GPU of NVIDIA")
    if strange := [name for name in names if not name.isdecimal()]:
        raise ClusterError(f"GPUS={given}: {strange[0]!r} is no index of a GPU; an example is GPUS=0,1")
    return tuple(sorted({int(name) for name in names}))
