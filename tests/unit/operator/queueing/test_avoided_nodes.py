"""What the queue counts of nodes that an attempt avoids."""

from dataclasses import replace

from rljob_api.status import NodeFate
from rljob_operator.capacity.demand import Pods
from rljob_operator.capacity.packing import Node, Nodes, against_nodes, places
from rljob_operator.queueing.free_capacity import shape_of
from rljob_operator.queueing.tickets import wanted_pods
from support.operator.operator_world import DEFAULTS, Surroundings, admitted

CPU = {"requests": {"cpu": "8", "memory": "1Gi"}}
NODES = Nodes(Node(name, {"cpu": 64_000, "memory": 2**40 * 1000, "pods": 110_000}) for name in "abc")


def pods(*avoided: str, **changes: object) -> tuple[Pods, ...]:
    """Return what a job wants whose attempt avoids these nodes."""
    around = Surroundings()
    around.step()
    (attempt,) = around.status["attempts"]
    given = {**attempt, "nodes": {**dict.fromkeys(avoided, NodeFate.AVOIDED), "z": NodeFate.USED}, **changes}
    around.raw["status"]["attempts"] = [given]
    return wanted_pods(admitted(around.raw, replace(DEFAULTS, head_resources=CPU, worker_resources=CPU)))


def test_the_pods_of_an_open_attempt_find_no_place_on_nodes_that_it_avoids():
    found = places(pods("a", "b"), NODES)
    assert {NODES[index].name for _, index in found} == {"c"}
    assert places(pods("a", "b", "c"), NODES) is False
    assert list(against_nodes(pods("a", "b", "c"), NODES, None)) != []
    assert list(against_nodes(pods("a", "b"), NODES, None)) == []


def test_an_attempt_that_has_ended_or_avoids_nothing_leaves_no_node_out():
    ended = {"ended": "2027-01-15T08:00:00Z", "exitCode": 5}
    assert {each.avoids for each in (*pods(), *pods("a", **ended))} == {frozenset()}


def test_pods_that_avoid_other_nodes_are_not_alike():
    assert len({shape_of(each) for each in (pods(), pods("a"), pods("b"), pods("b"))}) == 3
