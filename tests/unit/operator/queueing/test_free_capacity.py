"""What is left of quotas and nodes while room is taken and given back."""

from dataclasses import replace

import pytest

from rljob_operator.capacity import packing
from rljob_operator.capacity.demand import Container, Pods
from rljob_operator.capacity.obstacle import Obstacle, Outcome
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.quotas import Limit
from rljob_operator.capacity.snapshot import Snapshot
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


CPU = "cpu"


def asking(gpus: int, cpus: int, count: int = 1, group: str = "workers") -> Pods:
    """Return pods with cores, and GPUs if there are any."""
    size = {CPU: cpus * 1000} | ({GPU: gpus * 1000} if gpus else {})
    return Pods(group, count, (Container(size, size),), {}, (), None)


def having(name: str, gpus: int, cpus: int) -> Node:
    return Node(name, {GPU: gpus * 1000, CPU: cpus * 1000, "pods": 110_000})


def of_nodes(*nodes: Node) -> FreeCapacity:
    return FreeCapacity(Snapshot({}, {}, nodes, ()))


def test_a_pool_is_of_the_pods_with_gpus_and_of_all_pods_where_none_has_any():
    room = of_nodes(having("cores", 0, 64), having("gpus", 8, 64))
    assert room.pool("ml", (asking(0, 4, group="head"), asking(4, 4))) == {1}
    assert room.pool("ml", (asking(0, 4, group="head"), asking(0, 8))) == {0, 1}


def test_pods_that_no_node_suits_are_a_pool_of_their_own():
    room = of_nodes(having("gpus", 8, 64))
    many, few = asking(16, 4, count=2), asking(16, 4)
    assert room.pool("ml", (many,)) == room.pool("ml", (few,)) != room.pool("ml", (asking(32, 4),))


def test_what_is_rarest_is_named_first_of_what_nodes_lack():
    room = of_nodes(having("node", 8, 8))
    used = asking(6, 6)
    spots = room.find("ml", (used,))
    assert isinstance(spots, tuple)
    room.take("a", "ml", (used,), spots)
    short = room.find("ml", (asking(4, 4),))
    assert isinstance(short, Shortage)
    assert [each.resource for each in short.obstacles] == [GPU]
    cores = room.find("ml", (asking(2, 4),))
    assert isinstance(cores, Shortage)
    assert [each.resource for each in cores.obstacles] == [CPU]


def test_room_is_kept_where_most_gpus_are_free_whatever_cores_are():
    room = of_nodes(having("cores", 8, 64), having("gpus", 8, 16))
    used = asking(4, 4)
    room.take("a", "ml", (used,), ((used, 0),))
    room.keep("b", "ml", (asking(4, 4),), with_nodes=True)
    assert room.find("ml", (asking(4, 4),)) == ((asking(4, 4), 0),)
    assert isinstance(room.find("ml", (asking(8, 4),)), Shortage)
