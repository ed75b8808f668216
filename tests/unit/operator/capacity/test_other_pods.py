"""What pods outside the queue use, after any history of objects, is what one look at the last ones would count."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.capacity.inventory import Kind
from rljob_operator.capacity.other_pods import OtherPods
from rljob_operator.identity import Manifest

NODES = {
    name: {
        "metadata": {"name": name, "uid": name},
        "spec": {},
        "status": {
            "allocatable": {"gpu": "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    for name in ("n0", "n1")
}
JOBS = ("", "ml/a", "ml/b")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("pod"),
            st.integers(0, 5),
            st.sampled_from(["", "n0", "n1"]),
            st.integers(1, 3),
            st.sampled_from(["Running", "Pending", "Succeeded"]),
        ),
        st.tuples(st.just("gone"), st.integers(0, 5)),
        st.tuples(st.just("quota"), st.integers(0, 1), st.sampled_from(["ml", "lab"])),
        st.tuples(st.just("no quota"), st.integers(0, 1)),
        st.tuples(st.just("queue"), st.sampled_from(JOBS[1:]), st.booleans()),
        st.tuples(st.just("look")),
    ),
    max_size=25,
)


def pod(number: int, node: str, gpus: int, phase: str) -> Manifest:
    containers = [{"resources": {"requests": {"gpu": str(gpus)}}}]
    metadata = {"name": f"p{number}", "uid": f"p{number}", "namespace": "ml" if number % 2 else "lab"}
    return {"metadata": metadata, "spec": {"containers": containers, "nodeName": node}, "status": {"phase": phase}}


def quota(number: int, namespace: str) -> Manifest:
    metadata = {"name": f"q{number}", "uid": f"q{number}", "namespace": namespace}
    return {"metadata": metadata, "spec": {"hard": {"requests.gpu": "8", "pods": "9"}}}


def counted(pods: dict[int, tuple[str, int, str]], queued: set[str]) -> dict[int, tuple[str, int]]:
    return {
        number: (node, gpus)
        for number, (node, gpus, phase) in pods.items()
        if phase != "Succeeded" and JOBS[number % 3] not in queued
    }


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_any_history_gives_what_a_count_of_its_end_gives(steps: list[tuple[Any, ...]]) -> None:
    others, pods, quotas, queued = OtherPods(()), dict[int, tuple[str, int, str]](), dict[int, str](), set[str]()
    for raw in NODES.values():
        others.put(Kind.NODES, raw)
    for what, *how in (*steps, ("look",)):
        match what, how:
            case "pod", (number, node, gpus, phase):
                pods[number] = node, gpus, phase
                others.put_pod(pod(number, node, gpus, phase), JOBS[number % 3])
            case "gone", (number,):
                pods.pop(number, None)
                others.remove_pod(f"p{number}")
            case "quota", (number, namespace) if quotas.get(number, namespace) == namespace:
                quotas[number] = namespace
                others.put_quota(quota(number, namespace))
            case "no quota", (number,):
                quotas.pop(number, None)
                others.remove_quota(f"q{number}")
            case "queue", (job, is_queued):
                (queued.add if is_queued else queued.discard)(job)
            case "look", _:
                others.seen(queued.__contains__, with_nodes=True)
    seen, there = others.seen(queued.__contains__, with_nodes=True), counted(pods, queued)
    for number, namespace in quotas.items():
        (found,) = (each for each in seen.quotas[namespace] if each.name == f"q{number}")
        mine = [gpus for pod, (_, gpus) in there.items() if (pod % 2 == 1) == (namespace == "ml")]
        used = {name: found.used.get(name, 0) for name in found.hard}
        assert used == {"requests.gpu": 1000 * sum(mine), "pods": 1000 * len(mine)}
    for node in seen.nodes or ():
        assert node.used.get("gpu", 0) == 1000 * sum(gpus for name, gpus in there.values() if name == node.name)


def test_nodes_are_left_out_where_they_may_not_be_seen() -> None:
    others = OtherPods(None)
    others.put(Kind.NODES, NODES["n0"])
    assert others.seen(lambda _: False, with_nodes=False).nodes is None
