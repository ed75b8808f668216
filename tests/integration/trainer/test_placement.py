"""Where Ray puts the slots of a topology. Ray is real; its GPUs are numbers, and no process touches one."""

import asyncio
from collections.abc import Iterator

import pytest
import ray

from rljob_api.sections import Device, Placement
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_api.sizing.topology import PlacedEngine, Sizes, Slot, lay_out
from rljob_trainer.assembly.engine_gpus import on_machines, one_for_each_machine
from rljob_trainer.engines.placement import Place, PlacementError, Slots, assign, reserve

WANTED = Sizes(
    placement=Placement.DISAGGREGATED,
    nodes=1,
    gpus_per_node=2,
    layout=ParallelLayout(tensor=2),
    engines=2,
    gpus_per_engine=2,
)


@pytest.fixture(scope="module")
def slots() -> Iterator[Slots]:
    ray.init(address="local", num_cpus=2, num_gpus=6, include_dashboard=False, object_store_memory=100 * 2**20)
    yield reserve(lay_out(WANTED), Device.GPU, 60)
    ray.shutdown()


@ray.remote
def seen() -> str:
    return ",".join(ray.get_runtime_context().get_accelerator_ids()["GPU"])


def test_every_rank_and_every_engine_has_gpus_of_its_own(slots: Slots) -> None:
    layout = lay_out(WANTED)
    ranks = [slots.visible_devices([rank.slot])["CUDA_VISIBLE_DEVICES"] for rank in layout.learner]
    engines = [slots.visible_devices(engine.slots)["CUDA_VISIBLE_DEVICES"].split(",") for engine in layout.engines]
    assert [len(gpus) for gpus in engines] == [2, 2]
    assert sorted([*ranks, *engines[0], *engines[1]]) == list("012345")


def test_ray_gives_an_actor_the_gpu_that_its_slot_names(slots: Slots) -> None:
    for slot in lay_out(WANTED).slots:
        given = ray.get(seen.options(**slots.options(slot)).remote())
        assert {"CUDA_VISIBLE_DEVICES": given} == slots.visible_devices([slot])


def test_a_gpu_is_read_on_each_machine_with_engines_and_may_stay_unknown(slots: Slots) -> None:
    chosen = one_for_each_machine(lay_out(WANTED), slots)
    assert len(chosen) == 1
    assert on_machines(slots, chosen) == [None]  # NVML knows no GPU here


@pytest.mark.parametrize("index", [0, 1])
def test_what_comes_back_into_a_shared_group_is_on_the_slot_that_it_had(slots: Slots, index: int) -> None:
    slot = lay_out(WANTED).learner[index].slot
    reservation = slots.reservation([slot])
    first, again = (asyncio.run(reservation.acquire()) for _ in range(2))
    assert first.environment == again.environment == slots.visible_devices([slot])
    assert again.options["scheduling_strategy"].placement_group_bundle_index == index


def test_the_slots_of_an_engine_are_on_one_machine_whatever_the_order_of_the_bundles() -> None:
    scattered = [Place(machine, bundle, "0") for bundle, machine in enumerate(["a", "b", "a", "b", "b", "b"])]
    given = assign(lay_out(WANTED), lay_out(WANTED).slots, scattered)
    assert {place.bundle for place in given.values()} == set(range(6))
    for engine in lay_out(WANTED).engines:
        assert len({given[slot].machine for slot in engine.slots}) == 1


def test_an_engine_on_two_machines_is_refused() -> None:
    torn = [Place(machine, bundle, "0") for bundle, machine in enumerate(["a", "a", "a", "b", "b", "b"])]
    with pytest.raises(PlacementError, match=r"the 2 GPUs of engine-0 on two machines.*spec\.rollout\.gpusPerEngine"):
        assign(lay_out(WANTED), lay_out(WANTED).slots, torn)


def test_on_cpu_nothing_is_hidden() -> None:
    places = {Slot(0, 0): Place("", 0)}
    assert Slots(places, "CPU").visible_devices(PlacedEngine(0, (Slot(0, 0),)).slots) == {}
