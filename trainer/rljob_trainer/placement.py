"""Ray's side of the topology: one placement group with a bundle for each slot, and who sits in which bundle.

A slot is a GPU, or a CPU core's worth of work on a machine without them. Colocated processes share a slot's bundle.
Ray says only afterwards on which machine a bundle is: bundles are then sorted, so that the slots of a node of the
topology are GPUs of one machine.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
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


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """What Ray gave a bundle."""

    machine: str
    bundle: int
    gpu: str = ""
    """as CUDA_VISIBLE_DEVICES names it; empty without GPUs"""


@dataclass(frozen=True)
class Slots:
    """The reserved slots."""

    group: PlacementGroup
    places: dict[Slot, Place]
    resource: str

    def options(self, slot: Slot) -> dict[str, Any]:
        """Return the Ray actor options of a process that sits on this slot."""
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.places[slot].bundle)
        share = {"num_gpus": SHARE, "num_cpus": 0} if self.resource == "GPU" else {"num_cpus": SHARE}
        return {"scheduling_strategy": strategy, **share}

    def visible_devices(self, slots: Iterable[Slot]) -> dict[str, str]:
        """Return the environment of a process on several slots of one machine: Ray only sets the first slot's."""
        if self.resource != "GPU":
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.places[slot].gpu for slot in slots)}


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
    return Slots(group, assign(topology, _places(group, resource, len(topology.slots))), resource)


def assign(topology: Topology, places: Sequence[Place]) -> dict[Slot, Place]:
    """Return the place of every slot; raise PlacementError when an engine would lie on two machines."""
    machines = [list(group) for _, group in groupby(sorted(places), lambda place: place.machine)]
    in_order = [place for machine in sorted(machines, key=len, reverse=True) for place in machine]
    slots = sorted(topology.slots, key=lambda slot: -topology.nodes[slot.node].gpus)  # stable: node by node
    given = dict(zip(slots, in_order, strict=True))
    for engine in topology.engines:
        if len({given[slot].machine for slot in engine.slots}) > 1:
            raise PlacementError(
                f"reserve {len(slots)} slots: Ray found the {len(engine.slots)} GPUs of {engine.name} on two machines, "
                "and an SGLang server is on one; free GPUs there, or lower spec.rollout.gpusPerEngine"
            )
    return given


def _places(group: PlacementGroup, resource: str, number: int) -> list[Place]:
    """Ask every bundle where it is."""
    if resource != "GPU":
        return [Place("", bundle) for bundle in range(number)]
    looks = [
        look.options(
            num_gpus=SHARE,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
        ).remote()
        for bundle in range(number)
    ]
    return [Place(machine, bundle, gpu) for bundle, (machine, gpu) in enumerate(ray.get(looks))]


@ray.remote(num_cpus=0)
def look() -> tuple[str, str]:
    """Return the machine and the GPU of the bundle that this task runs in."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_accelerator_ids()["GPU"][0]
