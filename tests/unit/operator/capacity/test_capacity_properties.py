"""Packing against brute force, and what more room or fewer pods may never make worse."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.capacity.demand import Container, Pods
from rljob_operator.capacity.obstacle import Outcome
from rljob_operator.capacity.packing import Node, against_nodes, placed
from rljob_operator.capacity.quotas import Quota
from rljob_operator.capacity.verdict import Capacity, judged

RESOURCES = ("gpu", "cpu")
SIZES = st.fixed_dictionaries({name: st.integers(0, 4) for name in RESOURCES})
LABELS = st.sampled_from([{}, {"pool": "a"}])


def pods_of(sizes: list[tuple[dict[str, int], int, dict[str, str]]]) -> tuple[Pods, ...]:
    return tuple(
        Pods(f"group-{i}", count, (Container(size, size),), selector, (), None)
        for i, (size, count, selector) in enumerate(sizes)
    )


def node_of(index: int, size: dict[str, int], labels: dict[str, str], used: dict[str, int]) -> Node:
    return Node(f"node-{index}", {**size, "pods": 110_000}, labels, used=used)


GROUPS = st.lists(st.tuples(SIZES, st.integers(1, 3), LABELS), min_size=1, max_size=2).map(pods_of)
NODES = st.lists(st.tuples(SIZES, LABELS, SIZES), min_size=0, max_size=3).map(
    lambda found: tuple(node_of(i, *each) for i, each in enumerate(found))
)
QUOTAS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=2).map(
    lambda found: tuple(
        Quota(f"q{i}", {"requests.gpu": hard}, {"requests.gpu": used}) for i, (hard, used) in enumerate(found)
    )
)
CAPACITIES = st.builds(Capacity, quotas=QUOTAS, nodes=NODES, coming=st.one_of(st.none(), st.just(()), NODES))


def fits_by_brute_force(pods: tuple[Pods, ...], nodes: tuple[Node, ...], key: str) -> bool:
    queue = [each for each in pods for _ in range(each.count)]
    for choice in itertools.product(range(len(nodes)), repeat=len(queue)):
        rooms = [dict(getattr(node, key)) for node in nodes]
        for each, index in zip(queue, choice, strict=True):
            for name, amount in each.requests.items():
                rooms[index][name] = rooms[index].get(name, 0) - amount
            if any(nodes[index].labels.get(label) != value for label, value in each.node_selector.items()):
                rooms[index]["pods"] = -1
        wanted = {name for each in queue for name, amount in each.requests.items() if amount}
        if all(
            room.get(name, 0) >= 0 or getattr(nodes[i], key).get(name, 0) == room.get(name, 0)
            for i, room in enumerate(rooms)
            for name in wanted
        ):
            return True
    return False


@given(GROUPS, NODES)
def test_the_search_agrees_with_brute_force(pods, nodes):
    assert placed(pods, nodes) is fits_by_brute_force(pods, nodes, "allocatable")


@given(GROUPS, NODES)
def test_never_is_not_said_of_what_can_be_packed(pods, nodes):
    outcome = judged(pods, Capacity(nodes=nodes, coming=())).outcome
    assert (outcome is Outcome.NEVER) == (not fits_by_brute_force(pods, nodes, "allocatable"))
    assert outcome is not Outcome.FITS or fits_by_brute_force(pods, nodes, "free")


@given(GROUPS, CAPACITIES, st.integers(0, 5))
def test_more_quota_is_never_worse(pods, capacity, more):
    larger = tuple(replace(q, hard={name: hard + more for name, hard in q.hard.items()}) for q in capacity.quotas)
    assert judged(pods, replace(capacity, quotas=larger)).outcome <= judged(pods, capacity).outcome


@given(GROUPS, CAPACITIES, SIZES)
def test_one_more_node_is_never_worse(pods, capacity, size):
    more = (*capacity.nodes, node_of(99, size, {}, {}))
    assert judged(pods, replace(capacity, nodes=more)).outcome <= judged(pods, capacity).outcome


@given(GROUPS, CAPACITIES)
def test_one_pod_less_is_never_worse(pods, capacity):
    fewer = (replace(pods[0], count=pods[0].count - 1), *pods[1:])
    assert judged(fewer, capacity).outcome <= judged(pods, capacity).outcome


def test_a_search_without_a_solution_ends():
    pods = pods_of([({"gpu": 8}, 60, {}), ({"gpu": 5}, 41, {})])
    nodes = tuple(node_of(i, {"gpu": 8 if i % 2 else 4}, {}, {}) for i in range(200))
    assert placed(pods, nodes) in (False, None)


REPEATED = st.tuples(NODES, st.lists(st.integers(1, 3), min_size=3, max_size=3)).map(
    lambda found: tuple(
        replace(node, name=f"{node.name}-{copy}", labels={**node.labels, "name": f"{node.name}-{copy}"})
        for node, times in zip(found[0], found[1], strict=False)
        for copy in range(times)
    )
)
"""nodes of which some differ in their names only"""


@given(GROUPS, REPEATED, st.one_of(st.none(), st.just(()), NODES))
def test_nodes_that_are_alike_are_judged_as_if_each_was_looked_at(
    pods: tuple[Pods, ...], nodes: tuple[Node, ...], coming: tuple[Node, ...] | None
) -> None:
    found = {each.outcome for each in against_nodes(pods, nodes, coming)}
    never = Outcome.LATER if coming is None else Outcome.NEVER
    if placed(pods, nodes, now=True):
        assert found == set()
    elif placed(pods, (*nodes, *(coming or ()))):
        assert found == {Outcome.LATER}
    else:
        assert found == {never}


def test_what_alike_nodes_have_together_is_counted_for_each_of_them() -> None:
    size = {"gpu": 4000}
    nodes = [Node(f"n{i}", {**size, "pods": 110_000}, used={"gpu": 3000}) for i in range(3)]
    four = Pods("group", 4, (Container(size, size),), {}, (), None)
    assert [each.text for each in against_nodes([four], nodes, ())] == ["all matching nodes together have 12 of gpu"]
    two = replace(four, count=2)
    assert [each.text for each in against_nodes([two], nodes, ())] == ["matching nodes have 3 of gpu free"]
    nowhere = replace(two, node_selector={"pool": "a"})
    (text,) = [each.text for each in against_nodes([nowhere], nodes, ())]
    assert text.startswith("none of 3 nodes has the labels pool=a")
