"""What the largest jobs cost that the CRD admits: as much as a small one, for nodes are counted by their shapes."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.sections import MOST_RANKS
from rljob_operator.capacity.demand import Container, Pods
from rljob_operator.capacity.obstacle import Outcome
from rljob_operator.capacity.packing import Node, Nodes, against_nodes, placed, places
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.plan import plan
from rljob_operator.webhook.review.answer import answer
from rljob_operator.world.world import ControlToken, World, job_of
from support.operator.operator_world import DEFAULTS, NOW, raw_job

LARGEST = {
    "many nodes": ("Disaggregated", 10_000, 10, 10_000, 10),
    "many GPUs of a node": ("Disaggregated", 100, 1_000, 100, 1_000),
    "shared": ("Colocated", 10_000, 8, 10_000, 8),
    "shared and single": ("Colocated", 1, 1, 10_000, 1),
    "as in large clusters": ("Disaggregated", 10_000, 8, 10_000, 1),
}
NODES = Nodes(
    Node(
        f"n{index}",
        {"nvidia.com/gpu": 8_000, "cpu": 96_000, "memory": 10**15, "pods": 110_000},
        {"pool": f"p{index % 7}"},
        used={"nvidia.com/gpu": 1000 * (index % 9), "cpu": 1000 * (index % 50)},
    )
    for index in range(1_000)
)
MORE_BYTES = 2 * 2**20
"""that the largest job may take, compared with one of a single GPU"""


def raw(placement: str, nodes: int, gpus: int, engines: int, per_engine: int) -> dict[str, Any]:
    return raw_job(
        placement=placement,
        runtime={"device": "Gpu"},
        training={"nodes": nodes, "gpusPerNode": gpus},
        rollout={"engines": engines, "gpusPerEngine": per_engine, "promptsPerStep": MOST_RANKS},
    )


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the memory that work takes on its way, the second time."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def reviewed(job: dict[str, Any], seen: Snapshot | None) -> Callable[[], object]:
    request = {"operation": "CREATE", "namespace": "ml", "object": job, "uid": "1", "dryRun": True}
    return lambda: answer(request, DEFAULTS, seen)


def planned(job: dict[str, Any]) -> Callable[[], object]:
    return lambda: plan(job_of(job), World(token=ControlToken("t", next_key="k"), defaults=DEFAULTS), NOW)


@pytest.mark.parametrize("size", LARGEST.values(), ids=LARGEST)
@pytest.mark.parametrize("seen", [None, Snapshot({}, {}, NODES, ()), Snapshot({}, {}, NODES, None)])
def test_a_review_of_the_largest_job_takes_no_more_memory_than_one_of_the_smallest(size: Any, seen: Snapshot | None):
    small = peak_bytes(reviewed(raw("Disaggregated", 1, 1, 1, 1), seen))
    assert peak_bytes(reviewed(raw(*size), seen)) < small + MORE_BYTES


@pytest.mark.parametrize("size", LARGEST.values(), ids=LARGEST)
def test_a_plan_of_the_largest_job_takes_no_more_memory_than_one_of_the_smallest(size: Any):
    small = peak_bytes(planned(raw("Disaggregated", 1, 1, 1, 1)))
    assert peak_bytes(planned(raw(*size))) < small + MORE_BYTES


@pytest.mark.parametrize("size", LARGEST.values(), ids=LARGEST)
def test_the_largest_jobs_are_valid(size: Any):
    assert job_of(raw(*size)).problems == ()


def alike(name: str, count: int, **amounts: int) -> Pods:
    return Pods(name, count, (Container(amounts, amounts),), {}, (), None)


def test_pods_that_are_alike_are_placed_at_once():
    nodes = [Node(f"n{index}", {"gpu": 10**6, "pods": 10**12}) for index in range(4)]
    single, double = alike("a", 2_000_000, gpu=1), alike("b", 1_000_000, gpu=2)
    assert placed([single, double], nodes) is True
    (one_more,) = against_nodes([single, replace(double, count=1_000_001)], nodes, ())
    assert one_more.outcome is Outcome.NEVER


def test_pods_that_many_nodes_let_in_leave_room_for_those_that_few_do():
    nodes = [
        Node(f"{pool}{index}", {"gpu": 8, "pods": 110_000}, {"pool": pool}, used={"cpu": index})
        for pool, count in (("few", 4), ("many", 8))
        for index in range(count)
    ]
    few = Pods("picky", 4, (Container({"gpu": 8}, {}),), {"pool": "few"}, (), None)
    found = places([alike("any", 8, gpu=8), few], nodes)
    assert found is not None
    assert {nodes[index].labels["pool"] for pods, index in found if pods is few} == {"few"}
    assert sorted(index for _, index in found) == list(range(12))
