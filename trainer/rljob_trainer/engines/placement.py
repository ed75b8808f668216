"""Ray's side of the topology: placement groups with a bundle for each slot, and who sits in which bundle.

A slot is a GPU, or a CPU core's worth of work on a machine without them. Colocated processes share a slot's bundle, and
all bundles are one group. Disaggregated, the learner has a group and each engine another, so that engines can
come and go; where KubeRay labels pods by node group, learner and engines stay apart.
Ray says only afterwards on which machine a bundle is: bundles are then sorted, so that the slots of a node of the
topology are GPUs of one machine.
"""

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_api.sections import Device, Placement
from rljob_api.sizing.topology import REST, NodeGroup, Slot, Topology
from rljob_trainer.engines.command import NOTHING_COMPILED
from rljob_trainer.engines.ray_host import ActorPlacement

log = logging.getLogger(__name__)

SHARE = 0.4
"""of a slot for one process: a learner rank and an engine fit in one"""
OBJECT_STORE_BYTES = 512 * 2**20
"""on one machine; batches and small messages are all that goes through it"""
LOOPBACK, LOOPBACK_INTERFACE = "127.0.0.1", "lo"
NODE_GROUP = "ray.io/node-group"
"""Ray's label for the worker group of a pod; KubeRay has it set"""
WAIT_SLICE_S = 1
"""of waiting for room; a thread cannot be cancelled"""


class PlacementError(RunError, RuntimeError):
    """Ray has no room for the run; the text says what was wanted and what is free."""

    exit = Exit.LOST_PEER


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """What Ray gave a bundle."""

    machine: str
    bundle: int
    gpu: str = ""
    """as CUDA_VISIBLE_DEVICES names it; empty without GPUs"""
    group: PlacementGroup | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Gang:
    """Bundles that Ray reserves together, all or nothing."""

    group: PlacementGroup
    bundles: tuple[int, ...]
    resource: str

    def places(self) -> list[Place]:
        """Ask every bundle where it is, once they are reserved."""
        if self.resource != "GPU":
            return [Place("", bundle, group=self.group) for bundle in self.bundles]
        looks = [
            look.options(
                num_gpus=SHARE,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle),
            ).remote()
            for bundle in self.bundles
        ]
        found = zip(self.bundles, ray.get(looks), strict=True)
        return [Place(machine, bundle, gpu, self.group) for bundle, (machine, gpu) in found]


@dataclass(frozen=True)
class Slots:
    """The reserved slots."""

    places: dict[Slot, Place]
    resource: str

    def options(self, slot: Slot) -> dict[str, Any]:
        """Return the Ray actor options of a process that sits on this slot."""
        return actor_options(self.places[slot], self.resource)

    def are_reserved(self, slots: Iterable[Slot]) -> bool:
        """Return whether Ray still has these slots: it gives them up when it notices that their machine is gone."""
        groups = {id(group): group for slot in slots if (group := self.places[slot].group) is not None}
        return all(placement_group_table(group)["state"] == "CREATED" for group in groups.values())

    def visible_devices(self, slots: Iterable[Slot]) -> dict[str, str]:
        """Return the environment of a process on several slots of one machine: Ray only sets the first slot's."""
        return visible_devices([self.places[slot] for slot in slots], self.resource)

    def reservation(self, slots: Sequence[Slot]) -> "EngineReservation":
        """Return the reservation of the engine on these slots."""
        places = [self.places[slot] for slot in slots]
        assert places[0].group is not None, "every bundle is in a group"
        bundles = tuple(place.bundle for place in places)
        return EngineReservation(Gang(places[0].group, bundles, self.resource), places)


class EngineReservation:
    """Resources for one engine: reserved already, or as soon as some are free."""

    def __init__(self, gang: Gang, places: Sequence[Place] = ()) -> None:
        """`places` are those of the first time; Ray gives others when the machine is lost."""
        self._gang = gang
        self._places = places

    async def acquire(self) -> ActorPlacement:
        """Return the placement as soon as the resources are reserved; wait without a limit."""
        while not await asyncio.to_thread(self._gang.group.wait, WAIT_SLICE_S):
            continue
        places, resource = self._places, self._gang.resource
        self._places = ()
        if not places:
            places = await asyncio.to_thread(self._gang.places)
        return ActorPlacement(actor_options(places[0], resource), visible_devices(places, resource))

    def release(self) -> None:
        """Release the resources, or stop waiting for them. Only for an engine that has a separate group."""
        remove_placement_group(self._gang.group)


def connect(topology: Topology, device: Device, address: str | None, temp_dir: Path) -> None:
    """Join the Ray cluster at `address`, or start one on this machine when there is none.

    One that a run starts listens on the loopback interface, as do all servers that ask Ray for the address of their
    machine, and needs its own token: other users of the machine have none.
    """
    if address:
        ray.init(address=address, log_to_driver=True)
        return
    if device is Device.CPU:
        os.environ.update(NOTHING_COMPILED)  # which what Ray starts inherits
    stay_on_loopback(os.environ)
    slots = topology.gpus
    ray.init(
        address="local",
        _node_ip_address=LOOPBACK,
        num_cpus=slots,
        num_gpus=slots if device is Device.GPU else 0,
        include_dashboard=False,
        log_to_driver=True,
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=str(temp_dir),
    )


def stay_on_loopback(environ: MutableMapping[str, str]) -> None:
    """Keep what Ray and the ranks start from the network, and give Ray a token.

    Ray 2.60 takes the address of the network card for 127.0.0.1, except where it expects no cluster. It wants a token
    by default, one for all runs of a user, and hands ours on to what it starts.
    """
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this process, which has read the variable already
    environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        environ.setdefault(name, LOOPBACK_INTERFACE)
    environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex())


def reserve(topology: Topology, device: Device, timeout_s: float) -> Slots:
    """Reserve every slot of the topology; raise PlacementError when that does not happen in time."""
    resource, deadline = device.value.upper(), time.monotonic() + timeout_s
    if topology.placement is Placement.COLOCATED:
        wanted = [(topology.slots, request(resource, topology.gpus, "workers"))]
    else:
        learner = tuple(rank.slot for rank in topology.learner)
        wanted = [(learner, request(resource, len(learner), "trainer"))] if learner else []
        wanted += [(engine.slots, request(resource, len(engine.slots), "rollout")) for engine in topology.engines]
    places: dict[Slot, Place] = {}
    for slots, gang in wanted:
        if not gang.group.wait(max(1, round(deadline - time.monotonic()))):
            there = ray.cluster_resources().get(resource, 0)
            raise PlacementError(
                f"reserve {topology.gpus} {resource} slots: not reserved in {timeout_s:g} s; the cluster has {there:g}"
            )
        places |= assign(topology, slots, gang.places())
    return Slots(places, resource)


def engine_reservation(topology: Topology, device: Device) -> EngineReservation:
    """Return a reservation for one more engine; it waits until there is room."""
    return EngineReservation(request(device.value.upper(), topology.gpus_per_engine, "rollout"))


def request(resource: str, slots: int, group: NodeGroup) -> Gang:
    """Ask Ray for the slots of an engine on one machine, on pods of a node group if there are such pods."""
    there = {node["Labels"].get(NODE_GROUP) for node in ray.nodes()}
    reserved = placement_group(
        [{resource: 1.0}] * slots,
        strategy="STRICT_PACK" if group == "rollout" else "PACK",
        bundle_label_selector=[selection(group)] * slots if group in there else None,
    )
    return Gang(reserved, tuple(range(slots)), resource)


def selection(group: NodeGroup) -> dict[str, str]:
    """Return Ray's label selector for the pods of a node group."""
    return {NODE_GROUP: f"in({group},{group}{REST})"}


def actor_options(place: Place, resource: str) -> dict[str, Any]:
    """Return the Ray actor options of a process that sits in a bundle."""
    strategy = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.bundle)
    share = {"num_gpus": SHARE, "num_cpus": 0} if resource == "GPU" else {"num_cpus": SHARE}
    return {"scheduling_strategy": strategy, **share}


def visible_devices(places: Iterable[Place], resource: str) -> dict[str, str]:
    """Return the environment of a process on several bundles of one machine."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(place.gpu for place in places)} if resource == "GPU" else {}


def assign(topology: Topology, slots: Sequence[Slot], places: Sequence[Place]) -> dict[Slot, Place]:
    """Return the place of each of the slots; raise PlacementError when an engine would lie on two machines."""
    machines = [list(group) for _, group in groupby(sorted(places), lambda place: place.machine)]
    in_order = [place for machine in sorted(machines, key=len, reverse=True) for place in machine]
    slots = sorted(slots, key=lambda slot: -topology.nodes[slot.node].gpus)  # stable: node by node
    given = dict(zip(slots, in_order, strict=True))
    for engine in topology.engines:
        if len({given[slot].machine for slot in engine.slots if slot in given}) > 1:
            raise PlacementError(
                f"reserve {len(slots)} slots: Ray found the {len(engine.slots)} GPUs of {engine.name} on two machines, "
                "and an SGLang server is on one; free GPUs there, or lower spec.rollout.gpusPerEngine"
            )
    return given


@ray.remote(num_cpus=0)
def look() -> tuple[str, str]:
    """Return the machine and the GPU of the bundle that this task runs in."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_accelerator_ids()["GPU"][0]
