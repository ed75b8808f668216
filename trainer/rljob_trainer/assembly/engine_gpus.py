"""Before engines start: whether their GPUs let them keep FP8 weights as they are published.

slots of engines ─► a task on each machine reads its GPU ─► `rljob_api.sizing.fp8_gpus` decides
"""

import os
from collections.abc import Callable, Iterable

import ray

from rljob_api.sections import Spec
from rljob_api.sizing.fp8_gpus import EngineGpu, matters, problem
from rljob_api.sizing.topology import Slot, Topology
from rljob_trainer.engines.placement import Slots
from rljob_trainer.gpus.capability import engine_gpu
from rljob_trainer.preflight import PreflightError

ANSWER_S = 60.0
"""longest wait for the machines: each starts a process for it"""

Read = Callable[[Slots, tuple[Slot, ...]], Iterable[EngineGpu | None]]


def require_kept_weights(spec: Spec, topology: Topology, slots: Slots, read: Read | None = None) -> None:
    """Raise PreflightError where an engine's GPU would change published weights. GPUs that NVML cannot read pass."""
    if not matters(spec):
        return
    gpus = (read or on_machines)(slots, one_for_each_machine(topology, slots))
    found = [problem(spec, gpu) for gpu in gpus if gpu is not None]
    if said := dict.fromkeys(str(each) for each in found if each is not None):
        raise PreflightError("; ".join(said))


def one_for_each_machine(topology: Topology, slots: Slots) -> tuple[Slot, ...]:
    """Return the first slot of engines on each machine: the GPUs of a machine are alike."""
    first: dict[str, Slot] = {}
    for engine in topology.engines:
        first.setdefault(slots.places[engine.slots[0]].machine, engine.slots[0])
    return tuple(first.values())


def on_machines(slots: Slots, chosen: tuple[Slot, ...]) -> list[EngineGpu | None]:
    looks = [look.options(**slots.options(slot)).remote(slots.places[slot].gpu) for slot in chosen]
    found: list[EngineGpu | None] = ray.get(looks, timeout=ANSWER_S)
    return found


@ray.remote
def look(gpu: str) -> EngineGpu | None:
    """Return the GPU of the slot that this task runs on."""
    return engine_gpu(gpu, os.environ)
