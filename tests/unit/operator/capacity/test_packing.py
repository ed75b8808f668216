"""Which nodes let which pods in, and what a node has."""

import pytest

from rljob_operator.capacity.demand import Container, Pods
from rljob_operator.capacity.packing import Node, Nodes, lets_in, node_of, placed, places

TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}


def pods(*tolerations: dict[str, str], group: str = "g", count: int = 1, selector: dict | None = None, **size: int):
    return Pods(group, count, (Container(size, size),), selector or {}, tolerations, None)


def node(name: str = "n", labels: dict | None = None, taints: tuple = (), **size: int) -> Node:
    return Node(name, {**size, "pods": 110_000}, labels or {}, taints)


@pytest.mark.parametrize(
    ("toleration", "is_let_in"),
    [
        ({"key": "team", "operator": "Equal", "value": "b", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "b"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "", "operator": "Exists", "effect": ""}, True),
        ({"key": "team", "value": "a"}, False),
        ({"key": "team"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Equal"}, False),
    ],
)
def test_a_toleration_is_compared_as_the_scheduler_does(toleration: dict[str, str], is_let_in: bool):
    assert lets_in(node(taints=(TAINT,)), pods(toleration)) is is_let_in


@pytest.mark.parametrize(
    ("effect", "is_let_in"), [("NoSchedule", False), ("NoExecute", False), ("PreferNoSchedule", True)]
)
def test_a_preference_keeps_no_pod_out(effect: str, is_let_in: bool):
    assert lets_in(node(taints=({**TAINT, "effect": effect},)), pods()) is is_let_in


@pytest.mark.parametrize(
    ("ready", "spec", "is_schedulable"),
    [("True", {}, True), ("False", {}, False), ("Unknown", {}, False), ("True", {"unschedulable": True}, False)],
)
def test_a_node_is_schedulable_when_it_is_ready_and_not_cordoned(ready: str, spec: dict, is_schedulable: bool):
    conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}]
    raw = {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions, "allocatable": {"cpu": "2"}}}
    found = node_of(raw, {"cpu": 500})
    assert (found.is_schedulable, found.free) == (is_schedulable, {"cpu": 1500})


def test_a_node_without_a_status_yet_has_nothing_and_lets_no_pod_in():
    found = node_of({"metadata": {"name": "n"}}, {})
    assert (found.is_schedulable, found.allocatable, found.labels, found.taints) == (False, {}, {}, ())


def test_pods_that_take_the_wrong_node_first_are_moved():
    """The larger pod fits on both nodes; the smaller one only on the first."""
    wanted = (pods(group="large", gpu=4), pods(group="small", selector={"pool": "a"}, gpu=3))
    nodes = (node("a", {"pool": "a"}, gpu=4), node("b", gpu=4))
    assert placed(wanted, nodes) is True
    assert placed(wanted, nodes[:1]) is False


def test_nodes_of_one_size_that_let_in_others_are_not_alike():
    wanted = (pods(group="any", gpu=4), pods(group="picky", selector={"pool": "b"}, gpu=4))
    assert placed(wanted, (node("a", {"pool": "b"}, gpu=4), node("b", {"pool": "a"}, gpu=4))) is True


def test_nodes_are_grouped_by_the_labels_that_are_asked_for_each_time():
    nodes = Nodes(Node(name, {"cpu": 1000}, {"pool": pool}) for name, pool in (("a", "x"), ("b", "y"), ("c", "x")))

    def counted(*labels: str) -> list[tuple[str, int]]:
        return [(each.node.name, each.count) for each in nodes.kinds(labels)]

    assert [counted(), counted("pool"), counted(), counted("pool"), counted("zone")] == [
        [("a", 3)],
        [("a", 2), ("b", 1)],
        [("a", 3)],
        [("a", 2), ("b", 1)],
        [("a", 3)],
    ]


def in_two_pools(trainers: int, engines: int) -> tuple[tuple[Pods, ...], tuple[Node, ...]]:
    """Return pods of which some may be in one of two pools only, and nodes of both whose CPU is used differently."""
    nodes = tuple(
        Node(f"n{i}", {"gpu": 8, "cpu": 96, "pods": 110_000}, {"pool": "a" if i < 4 else "b"}, used={"cpu": i + 1})
        for i in range(12)
    )
    wanted = (
        pods(group="head", cpu=4),
        pods(group="trainer", count=trainers, gpu=8, cpu=32),
        pods(group="rollout", count=engines, selector={"pool": "a"}, gpu=8, cpu=16),
    )
    return wanted, nodes


def test_pods_for_anywhere_leave_a_pool_to_those_that_need_it():
    wanted, nodes = in_two_pools(trainers=8, engines=4)
    found = places(wanted, nodes)
    assert isinstance(found, tuple)
    assert {node for each, node in found if each.group == "rollout"} == {0, 1, 2, 3}


@pytest.mark.parametrize(("trainers", "engines"), [(9, 4), (7, 5), (12, 1), (1, 12)])
def test_a_job_that_is_too_large_for_two_pools_is_refused_and_not_given_up(trainers: int, engines: int):
    wanted, nodes = in_two_pools(trainers, engines)
    assert places(wanted, nodes) is False
    assert placed(wanted, nodes) is False
