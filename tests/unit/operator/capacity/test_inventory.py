"""What is kept object by object is what a look at all objects shows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.capacity.inventory import Inventory, Kind
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.snapshot import Snapshot, snapshot, used_by_node
from rljob_operator.identity import Manifest

GPU = "nvidia.com/gpu"
NAMES = ("a", "b", "c")
PHASES = ("Pending", "Running", "Succeeded", "Failed")


def pod(uid: str, node: str | None, gpus: int, phase: str = "Running") -> Manifest:
    spec: Manifest = {"containers": [{"resources": {"requests": {GPU: str(gpus)}}}]}
    if node is not None:
        spec["nodeName"] = node
    return {"metadata": {"uid": uid, "namespace": "ml"}, "spec": spec, "status": {"phase": phase}}


def node(name: str, gpus: int, uid: str = "", **spec: Any) -> Manifest:
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {GPU: str(gpus), "pods": "10"}, "conditions": ready}
    return {"metadata": {"uid": uid or f"node-{name}", "name": name}, "spec": spec, "status": status}


def quota(uid: str, namespace: str, hard: int) -> Manifest:
    metadata = {"uid": uid, "namespace": namespace, "name": f"quota-{uid}"}
    return {"metadata": metadata, "spec": {"hard": {f"requests.{GPU}": str(hard)}}}


def limit(uid: str, namespace: str, most: int) -> Manifest:
    metadata = {"uid": uid, "namespace": namespace, "name": f"limit-{uid}"}
    return {"metadata": metadata, "spec": {"limits": [{"type": "Pod", "max": {"cpu": str(most)}}]}}


CHANGES = st.one_of(
    st.tuples(
        st.just(Kind.PODS),
        st.builds(
            pod, st.sampled_from(NAMES), st.sampled_from((None, *NAMES)), st.integers(0, 4), st.sampled_from(PHASES)
        ),
    ),
    st.tuples(st.just(Kind.NODES), st.builds(node, st.sampled_from(NAMES), st.integers(0, 8))),
    st.tuples(st.just(Kind.QUOTAS), st.builds(quota, st.sampled_from(NAMES), st.just("ml"), st.integers(0, 9))),
    st.tuples(st.just(Kind.LIMITS), st.builds(limit, st.sampled_from(NAMES), st.just("ml"), st.integers(0, 9))),
)


def seen(found: Snapshot) -> Any:
    """Return what a snapshot says, without the order of objects."""
    nodes = {each.name: (each.free, each.is_schedulable) for each in found.nodes or ()}
    quotas = {place: sorted(each, key=lambda quota: quota.name) for place, each in found.quotas.items()}
    limits = {place: sorted(each, key=lambda limit: limit.name) for place, each in found.limits.items()}
    return nodes, quotas, limits, found.coming, found.queues


def looked_at(objects: dict[tuple[Kind, str], Manifest]) -> Snapshot:
    of = {kind: [raw for (each, _), raw in objects.items() if each is kind] for kind in Kind}
    return snapshot(of[Kind.QUOTAS], of[Kind.LIMITS], of[Kind.NODES], used_by_node(of[Kind.PODS]))


@given(st.lists(st.tuples(CHANGES, st.booleans(), st.booleans()), max_size=30))
def test_changes_one_by_one_come_to_what_a_look_at_all_objects_shows(
    changes: list[tuple[tuple[Kind, Manifest], bool, bool]],
) -> None:
    inventory, there = Inventory(None), dict[tuple[Kind, str], Manifest]()
    for (kind, raw), is_removed, is_read in changes:
        uid = raw["metadata"]["uid"]
        if is_removed:
            inventory.remove(kind, uid)
            there.pop((kind, uid), None)
        else:
            inventory.put(kind, raw)
            there[kind, uid] = raw
        if is_read:
            assert seen(inventory.snapshot) == seen(looked_at(there))
    assert seen(inventory.snapshot) == seen(looked_at(there))


def free(inventory: Inventory) -> dict[str, int]:
    return {each.name: each.free[GPU] for each in inventory.snapshot.nodes or ()}


def test_a_pod_counts_when_it_gets_its_node_and_until_it_has_ended() -> None:
    inventory = Inventory(None)
    inventory.put(Kind.NODES, node("a", 8))
    inventory.put(Kind.PODS, pod("x", None, 3, "Pending"))
    assert free(inventory) == {"a": 8000}
    inventory.put(Kind.PODS, pod("x", "a", 3, "Pending"))
    assert free(inventory) == {"a": 5000}
    inventory.put(Kind.PODS, pod("x", "a", 3, "Succeeded"))
    assert free(inventory) == {"a": 8000}


def test_a_pod_that_is_known_before_its_node_counts_on_it() -> None:
    inventory = Inventory(None)
    inventory.put(Kind.PODS, pod("x", "a", 3))
    inventory.put(Kind.NODES, node("a", 8))
    assert free(inventory) == {"a": 5000}


def test_a_node_that_was_replaced_under_its_name_stays() -> None:
    inventory = Inventory(None)
    inventory.put(Kind.NODES, node("a", 8, uid="old"))
    inventory.put(Kind.NODES, node("a", 4, uid="new"))
    inventory.remove(Kind.NODES, "old")
    assert free(inventory) == {"a": 4000}
    inventory.remove(Kind.NODES, "new")
    assert free(inventory) == {}


def test_a_snapshot_does_not_change_afterwards() -> None:
    inventory = Inventory(None)
    inventory.put(Kind.NODES, node("a", 8))
    inventory.put(Kind.PODS, pod("w", "a", 1))
    inventory.put(Kind.QUOTAS, quota("q", "ml", 4))
    before = inventory.snapshot
    inventory.put(Kind.PODS, pod("x", "a", 3))
    inventory.remove(Kind.QUOTAS, "q")
    (only,) = before.nodes or ()
    assert (only.free[GPU], only.used[GPU]) == (7000, 1000)
    assert list(before.quotas) == ["ml"]
    assert inventory.snapshot.quotas == {}


@pytest.mark.parametrize("coming", [None, (), (Node("more", {GPU: 8000}),)])
def test_what_may_come_is_passed_on(coming: tuple[Node, ...] | None) -> None:
    assert Inventory(coming).snapshot.coming == coming


QUEUE = {"metadata": {"uid": "l", "namespace": "ml", "name": "gpus"}, "spec": {"clusterQueue": "all"}}


def test_queues_of_kueue_are_known_only_where_kueue_is_used() -> None:
    assert Inventory(None).snapshot.queues is None
    inventory = Inventory(None, has_queues=True)
    inventory.put(Kind.LOCAL_QUEUES, QUEUE)
    first = inventory.snapshot.queues
    assert first is not None
    assert first.local == {("ml", "gpus"): "all"}
    inventory.remove(Kind.LOCAL_QUEUES, "l")
    last = inventory.snapshot.queues
    assert last is not None
    assert last.local == {}
