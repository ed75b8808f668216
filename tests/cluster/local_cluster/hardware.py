"""What the nodes of a cluster are built of, chosen here: pretended GPUs and images, or GPUs and files of this machine.

It is kept in the cluster's directory: a node that starts again needs it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from local_cluster import packages
from local_cluster.gpus import CountedGpus, Gpus, MachineGpus
from local_cluster.machine_files import Files, MachineFiles, NoFiles
from local_cluster.network_policies import StartGuard, start_network_policies

FILE = "hardware.json"
DISK_SIGNALS = ("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree")
"""on which a kubelet evicts pods and deletes images"""
PRETENDED_GPUS = 8
"""that each node says it has"""
GPU_KUBELET: Mapping[str, Any] = MappingProxyType(
    {
        # GPUs can be given to pods with the next update of the status, which otherwise is 10 s away.
        "nodeStatusUpdateFrequency": "1s",
        # The memory of some virtual machines grows as it is used: bounds taken from its first size would kill pods.
        "enforceNodeAllocatable": [],
        "evictionHard": dict.fromkeys(("memory.available", *DISK_SIGNALS), "0%"),
    }
)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one node."""

    gpus: Gpus
    files: Files
    guards: tuple[StartGuard, ...]
    """what enforces NetworkPolicies"""
    kubelet: Mapping[str, Any]
    """settings of the kubelet in the place of the usual ones"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What all nodes of a cluster are built of."""

    gpus: tuple[tuple[int, ...], ...] = ()
    """indexes of this machine's GPUs, by node; empty: each node pretends to have eight"""
    directories: tuple[str, ...] = ()
    """of this machine, which all containers see; empty: containers have what is in their images"""

    @property
    def packages(self) -> Mapping[str, tuple[str, ...]]:
        """The Debian packages that the machine needs."""
        return packages.NODE_PACKAGES if self.directories else packages.PACKAGES

    def parts(self, number: int) -> Parts:
        """Return the parts of the node with this number, from 1."""
        if not self.gpus:
            return Parts(CountedGpus(PRETENDED_GPUS), NoFiles(), (start_network_policies,), {})
        # kube-router was not tried on the kernels of machines with GPUs.
        return Parts(MachineGpus(self.gpus[number - 1]), MachineFiles(self.directories), (), GPU_KUBELET)


PRETENDED = Hardware()


def write_hardware(directory: Path, hardware: Hardware) -> None:
    """Keep it in the cluster's directory."""
    (directory / FILE).write_text(json.dumps(asdict(hardware), indent=2))


def read_hardware(directory: Path) -> Hardware:
    """Return what the nodes of the cluster in this directory are built of."""
    file = directory / FILE
    if not file.exists():
        return Hardware()
    found = json.loads(file.read_text())
    return Hardware(tuple(map(tuple, found["gpus"])), tuple(found["directories"]))
