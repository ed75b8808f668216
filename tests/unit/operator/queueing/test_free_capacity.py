"""What is left of quotas and nodes while room is taken and given back."""

from dataclasses import replace

import pytest

from rljob_operator.capacity import packing
from rljob_operator.capacity.obstacle import Obstacle, Outcome
from rljob_operator.capacity.quotas import Limit
from rljob_operator.queueing.free_capacity import GAVE_UP, FreeCapacity, Shortage
from support.operator.queue_world import GPU, nodes, quotas, workers


def test_all_that_a_job_has_taken_is_given_back():
    room = FreeCapacity(quotas(ml=8))
    room.take("a", "ml", (workers(4),), ())
    room.take("a", "ml", (workers(4, group="more"),), ())
    assert room.find("ml", (workers(1),)) != ()
    room.give_back("a")
    assert room.find("ml", (workers(8),)) == ()


def test_nodes_that_a_job_has_taken_in_two_steps_are_free_again():
    room, four = FreeCapacity(nodes(8)), workers(4)
    for _ in range(2):
        spots = room.find("ml", (four,))
        assert isinstance(spots, tuple)
        room.take("a", "ml", (four,), spots)
    room.give_back("a")
    assert room.find("ml", (workers(8),)) == ((workers(8), 0),)


def test_a_limit_range_counts_for_pods_of_its_namespace_alone():
    small = Limit("small", "Container", {}, {GPU: 1000}, {}, {})
    room = FreeCapacity(replace(quotas(ml=8, other=8), limits={"ml": (small,)}))
    assert isinstance(room.find("ml", (workers(2),)), Shortage)
    assert room.find("other", (workers(2),)) == ()


def test_a_search_that_was_stopped_does_not_say_that_the_pods_never_fit(monkeypatch: pytest.MonkeyPatch):
    pods = (workers(5, 2), workers(4, group="more"))
    never = FreeCapacity(nodes(6, 8)).find("ml", pods)
    monkeypatch.setattr(packing, "MOST_PLACES", -packing.MOST_PLACES)
    found = FreeCapacity(nodes(6, 8)).find("ml", pods)
    assert isinstance(never, Shortage)
    assert isinstance(found, Shortage)
    assert (never.outcome, never.is_unknown) == (Outcome.NEVER, False)
    assert found == Shortage(Outcome.LATER, (Obstacle(Outcome.LATER, GAVE_UP),), of_quota=False, is_unknown=True)
    assert found.of_quota is False


def test_pods_that_are_on_nodes_need_no_others():
    room, pods = FreeCapacity(nodes(8, 8)), (workers(4, 2),)
    assert room.hold("a", "ml", pods, {"workers": ("node-0", "node-1")}) == ()
    assert room.hold("b", "ml", pods, {"workers": ("node-0",)}) == (workers(4, 1),)


def test_a_node_without_a_resource_suits_no_pod_that_wants_the_least_of_it():
    least = workers(1)
    least = replace(
        least, containers=tuple(replace(each, requests={GPU: 1}, limits={GPU: 1}) for each in least.containers)
    )
    without = replace(nodes(8).nodes[0], name="cpu", allocatable={"pods": 110_000})
    seen = nodes(8)
    assert FreeCapacity(replace(seen, nodes=(*seen.nodes, without))).suitable((least,)) == {0}
