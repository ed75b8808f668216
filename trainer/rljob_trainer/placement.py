"""Ray's side of the topology: one placement group with a bundle for each slot, and who sits in which bundle.

A slot is a GPU, or a CPU core's worth of work on a machine without them. Colocated processes share a slot's bundle.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rljob_api.sections import Device
from rljob_api.topology import Slot, Topology

log = logging.getLogger(__name__)

SHARE = 0.4
"""of a slot for one process: a learner rank and an engine fit in one"""
OBJECT_STORE_BYTES = 512 * 2**20
"""on one machine; batches and small messages are all that goes through it"""


class PlacementError(RuntimeError):
    """Ray has no room for the run; the text says what was wanted and what there is."""


@dataclass(frozen=True)
class Slots:
    """The reserved slots."""

    group: PlacementGroup
    index: dict[Slot, int]
    resource: str

    def options(self, slot: Slot) -> dict[str, Any]:
        """Return the Ray actor options of a process that sits on this slot."""
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.index[slot])
        share = {"num_gpus": SHARE, "num_cpus": 0} if self.resource == "GPU" else {"num_cpus": SHARE}
        return {"scheduling_strategy": strategy, **share}


def connect(topology: Topology, device: Device, address: str | None, temp_dir: Path) -> None:
    """Join the Ray cluster at `address`, or start one on this machine when there is none."""
    if address:
        ray.init(address=address, log_to_driver=True)
        return
    slots = len(topology.slots)
    ray.init(
        address="local",
        num_cpus=slots,
        num_gpus=slots if device is Device.GPU else 0,
        include_dashboard=False,
        log_to_driver=True,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=str(temp_dir),
    )


def reserve(topology: Topology, device: Device, timeout_s: float) -> Slots:
    """Reserve every slot of the topology, all or nothing; raise PlacementError when that does not happen in time."""
    resource = device.value.upper()
    group = placement_group([{resource: 1.0}] * len(topology.slots), strategy="PACK")
    if not group.wait(timeout_s):
        there = ray.cluster_resources().get(resource, 0)
        raise PlacementError(
            f"reserve {len(topology.slots)} {resource} slots: not there within {timeout_s:g} s; "
            f"the cluster has {there:g}"
        )
    return Slots(group, {slot: index for index, slot in enumerate(topology.slots)}, resource)


def leave(slots: Slots | None) -> None:
    """Free the slots and leave the cluster; a cluster of our own ends."""
    if slots is not None:
        ray.util.remove_placement_group(slots.group)
    ray.shutdown()
