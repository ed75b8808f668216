"""Nodes that failed twice: when the next RayCluster avoids them, and when they are forgotten."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.exits import Cause, Exit
from rljob_api.status import NodeFate
from rljob_operator.attempts.avoidance import WINDOW_S, avoidance, suspects
from rljob_operator.capacity.packing import Node
from rljob_operator.world.history import AttemptRecord
from rljob_operator.world.pod_stage import PodStage, Stage
from rljob_operator.world.queue_decision import QueueDecision, Standing
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, admitted, raw_job, running

USED, AWAY, DRAINED, AVOIDED = NodeFate.USED, NodeFate.UNREACHABLE, NodeFate.EVICTED, NodeFate.AVOIDED
JOB = admitted(raw_job())


def attempts(*given: dict[str, Any], every_s: int = 600) -> tuple[AttemptRecord, ...]:
    """Return attempts that have ended, each with these nodes, the last one now."""
    end = int(NOW)
    return tuple(
        AttemptRecord(
            **{
                "number": i,
                "cluster": "c",
                "start_after": 0,
                "started": 1,
                "ended": end - every_s * (len(given) - i),
                "exit_code": int(Exit.LOST_PEER),
                "cause": Cause.INFRASTRUCTURE,
                **each,
            }
        )
        for i, each in enumerate(given, start=1)
    )


def nodes(**fates: NodeFate) -> dict[str, Any]:
    return {"nodes": fates}


@pytest.mark.parametrize(
    ("past", "found"),
    [
        ([nodes(a=AWAY)], []),
        ([nodes(a=AWAY), nodes(b=AWAY)], []),
        ([nodes(a=AWAY, b=USED), nodes(a=DRAINED, b=USED)], ["a"]),
        ([nodes(a=AWAY, b=AWAY), nodes(a=AWAY, b=AWAY)], ["a", "b"]),
        ([nodes(b=AWAY), nodes(b=AWAY), nodes(a=AWAY), nodes(a=AWAY)], ["b", "a"]),
        ([nodes(a=AWAY), nodes(a=AWAY), nodes(a=AVOIDED, b=USED)], ["a"]),
        ([nodes(a=AWAY), {**nodes(a=USED), "checkpoint": 5}, nodes(a=AWAY)], []),
        ([nodes(a=AWAY), nodes(a=USED), nodes(a=AWAY)], ["a"]),
        ([nodes(a=AWAY), nodes(a=AWAY), {**nodes(a=AVOIDED), "started": None}], []),
        ([nodes(a=AWAY), nodes(a=AWAY), {**nodes(a=USED), "started": None}], ["a"]),
        (
            [
                nodes(a=AWAY),
                nodes(a=AWAY),
                nodes(b=AWAY),
                nodes(b=AWAY),
                {**nodes(a=AVOIDED, b=AVOIDED), "started": None},
            ],
            ["b"],
        ),
    ],
)
def test_a_node_that_failed_two_attempts_is_suspected(past, found):
    assert list(suspects(attempts(*past), NOW)) == found


def test_failures_are_forgotten_after_a_day():
    past = attempts(nodes(a=AWAY), nodes(a=AWAY), every_s=3600)
    assert list(suspects(past, NOW + WINDOW_S - 3601)) == ["a"]
    assert list(suspects(past, NOW + WINDOW_S - 3600)) == []


def test_the_number_of_avoided_nodes_is_bounded_and_the_newest_are_avoided():
    past = attempts(*(nodes(**{name: AWAY}) for name in "abc" for _ in range(2)))
    assert avoidance(past, JOB, NOW).nodes == ("b", "c")
    for most, found in ((0, ()), (1, ("c",)), (3, ("a", "b", "c"))):
        assert avoidance(past, admitted(raw_job(), replace(DEFAULTS, avoided_nodes=most)), NOW).nodes == found


def test_the_oldest_is_used_again_where_the_others_do_not_hold_the_job():
    past = attempts(*(nodes(**{name: AWAY}) for name in "ab" for _ in range(2)))
    job = replace(JOB, has_room_without=lambda left_out: len(left_out) < 2)
    assert avoidance(past, job, NOW) == avoidance(past, job, NOW + 1)
    assert avoidance(past, job, NOW).nodes == ("b",)
    assert avoidance(past, job, NOW).note == (
        "avoids node b: Unreachable in attempt 3, Unreachable in attempt 4; "
        "uses node a, the job does not fit on the others: Unreachable in attempt 1, Unreachable in attempt 2"
    )


FATES = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(NodeFate), max_size=6)
PASTS = st.lists(
    st.builds(
        lambda fates, ran, saved: {"nodes": fates, "started": 1 if ran else None, "checkpoint": saved},
        FATES,
        st.booleans(),
        st.none() | st.integers(0, 9),
    ),
    max_size=12,
)


@given(PASTS, st.integers(0, 3), st.integers(0, 6))
def test_whatever_happened_no_more_nodes_are_avoided_than_may_be_and_the_job_fits_on_the_others(past, most, spare):
    job = replace(JOB, defaults=replace(DEFAULTS, avoided_nodes=most), has_room_without=lambda out: len(out) <= spare)
    found = avoidance(attempts(*past), job, NOW)
    assert len(found.nodes) <= min(most, spare)
    assert not found.nodes or found.note


# Through plans: a node whose pod is evicted twice.


def node(name: str, cpus: int = 64) -> Node:
    return Node(name, {"cpu": cpus * 1000, "memory": 2**50, "pods": 110_000})


def start(around: Surroundings, names: tuple[str, ...]) -> None:
    """KubeRay makes all pods on these nodes, and the driver trains."""
    around.deletions_done()
    around.now += 61
    around.step()
    around.pods_ready()
    placed = (replace(pod, node=name) for pod, name in zip(around.observed.pods, names, strict=True))
    around.observed = replace(around.observed, pods=tuple(placed))
    around.step()
    around.ray_answers()
    around.step()
    around.runs(running(attempt=around.status["attempt"]))
    around.step()


def evict(around: Surroundings, name: str) -> None:
    """Kubernetes evicts the pod on a node, and the driver saves and ends."""
    changed = {"is_deleting": True, "deleted_at": around.now, "disruption": "EvictionByEvictionAPI"}
    pods = tuple(replace(pod, **changed) if pod.node == name else pod for pod in around.observed.pods)
    around.observed = replace(around.observed, pods=pods)
    around.step()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.observed = replace(around.observed, pods=())


NAMES = ("gpu-1", "gpu-2", "cpu-1")


def failed_twice(around: Surroundings) -> Surroundings:
    around.step()
    for _ in range(2):
        start(around, NAMES)
        evict(around, "gpu-1")
    around.deletions_done()
    around.step()
    return around


def avoiding(around: Surroundings) -> list[list[str]]:
    """Return the nodes that the pods of the RayCluster must not be on, for each of its groups."""
    (cluster,) = around.observed.rayclusters()
    found = []
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        required = group["template"]["spec"].get("affinity", {}).get("nodeAffinity", {}).get(REQUIRED, {})
        found.append(
            [
                value
                for term in required.get("nodeSelectorTerms", ())
                for each in term["matchExpressions"]
                for value in each["values"]
            ]
        )
    return found


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def test_the_pods_of_the_next_cluster_avoid_a_node_that_failed_two_attempts():
    around = failed_twice(Surroundings())
    assert avoiding(around) == [["gpu-1"]] * 3
    assert around.status["attempts"][-1]["nodes"] == {"gpu-1": "Avoided"}
    (event,) = [each for each in around.events if each.reason == "AvoidNodes"]
    assert event.note == "attempt 3: avoids node gpu-1: Evicted in attempt 1, Evicted in attempt 2"
    assert around.plan().is_empty


def test_a_cluster_keeps_its_pods_as_they_were_made():
    around = failed_twice(Surroundings())
    start(around, ("gpu-3", "gpu-2", "cpu-1"))
    around.now += 2 * WINDOW_S
    around.runs(running(attempt=3))
    assert avoiding(around) == [["gpu-1"]] * 3
    assert [wanted["kind"] for wanted in around.plan().apply] == []


def test_no_node_is_avoided_if_the_others_do_not_hold_the_job():
    around = failed_twice(Surroundings(nodes=(node("gpu-1"),)))
    assert avoiding(around) == [[]] * 3
    (event,) = [each for each in around.events if each.reason == "AvoidNodes"]
    assert event.note.startswith("attempt 3: uses node gpu-1, the job does not fit on the others: Evicted")


def test_a_node_is_avoided_if_the_others_hold_the_job():
    around = failed_twice(Surroundings(nodes=(node("gpu-1"), node("gpu-2"))))
    assert avoiding(around) == [["gpu-1"]] * 3


def pending(around: Surroundings) -> None:
    """The scheduler finds no node for the pods."""
    around.pods_ready(0)
    stage = PodStage(Stage.SCHEDULING, around.now, "0/2 nodes are available")
    around.observed = replace(around.observed, pods=tuple(replace(pod, stage=stage) for pod in around.observed.pods))


@pytest.mark.parametrize("decision", [None, QueueDecision(Standing.RESERVED, "it holds room")])
def test_a_node_is_used_again_if_the_pods_find_no_other_ones(decision):
    around = failed_twice(Surroundings(queue_decision=decision))
    pending(around)
    around.now += 299
    around.step()
    assert around.status["attempt"] == 3
    around.now += 3  # it was due after a back-off
    around.step()
    around.observed = replace(around.observed, pods=())
    around.deletions_done()
    around.step()
    third, fourth = around.status["attempts"][-2:]
    assert (third["cause"], third["reason"]) == ("Suspended", "no nodes for 3 of its pods in 300 s without gpu-1")
    assert ("nodes" in fourth, avoiding(around)) == (False, [[]] * 3)
    assert around.events[-1].note == f"attempt 4: uses node gpu-1 again: {third['reason']}"
    assert around.status["restarts"] == 2


def test_pods_that_wait_for_nodes_and_avoid_none_wait_on():
    around = Surroundings()
    around.step()
    pending(around)
    around.now += 1000
    around.step()
    assert around.status["attempt"] == 1


def test_a_warm_cluster_on_a_suspected_node_is_not_used_again():
    around = Surroundings()
    around.step()
    for _ in range(2):
        start(around, NAMES)
        lost = tuple(
            replace(pod, is_ready=False, is_on_silent_node=True) if pod.node == "gpu-1" else pod
            for pod in around.observed.pods
        )
        around.observed = replace(around.observed, pods=lost)
        around.runs(
            running(
                step=5 * around.status["attempt"],
                checkpoint=5 * around.status["attempt"],
                attempt=around.status["attempt"],
            )
        )
        around.step()
        around.ends(Exit.LOST_PEER)
        around.step()
    clusters = [each["cluster"] for each in around.status["attempts"]]
    assert clusters == ["sums-7f3a1-1", "sums-7f3a1-1", "sums-7f3a1-3"]
