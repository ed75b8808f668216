"""One job over two real nodes: learner and engines on both, and what happens to a node happens under it."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from local_cluster import faults
from local_cluster.kubectl import Kubectl
from local_cluster.node import Node, is_ready
from local_cluster.node_cluster import NodeCluster
from local_cluster.project import Workspace
from support.operator.job_in_pods import JobInPods
from support.trainer.whole_run import PROMPTS_PER_STEP, expected_journal, uids, without_commits

pytestmark = pytest.mark.timeout(1800)

STEPS = 120
INTERVAL = 5
"""steps between checkpoints"""
MANY = 5000
"""steps that take longer than all faults of a test"""
ASKED = {"requests": {"cpu": "50m", "memory": "256Mi"}}
"""so little that one node holds all pods when the other is gone"""
SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
CUT_S = 20.0
"""how long a network is cut that a job survives: Ray gives a silent node up after 25 s"""


@pytest.fixture
def nodes(rljob: NodeCluster, two_nodes: NodeCluster) -> Iterator[tuple[Node, ...]]:
    yield rljob.nodes
    faults.restore(rljob.nodes, rljob.kubectl, os.environ)


def trains_on(nodes: tuple[Node, ...], kubectl: Kubectl, place: Workspace, steps: int) -> JobInPods:
    """Return a job with a rank and an engine on each node; it trains, and has a checkpoint."""
    role = {"topologySpreadConstraints": [SPREAD]}
    job = JobInPods(
        kubectl,
        place,
        placement="Disaggregated",
        rollout={"engines": 2},
        training={"nodes": 2, "steps": steps},
        checkpoint={"interval": INTERVAL},
        pods={"trainer": role, "rollout": role},
        runtime={"headResources": ASKED, "workerResources": ASKED},
    )
    job.until(lambda: job.step >= INTERVAL + 2)
    assert job.nodes_of("trainer") == job.nodes_of("rollout") == {node.name for node in nodes}, job.report()
    return job


def without(node: str, nodes: tuple[Node, ...]) -> Node:
    """Return the node that is not this one."""
    (other,) = [each for each in nodes if each.name != node]
    return other


def named(node: str, nodes: tuple[Node, ...]) -> Node:
    (found,) = [each for each in nodes if each.name == node]
    return found


def goes_on_without(job: JobInPods, lost: Node, fault: Callable[[], object]) -> None:
    """Let the fault happen to a node, and wait until the job trains on the other one, which holds all of its pods."""
    before = job.step
    started = time.monotonic()
    fault()
    job.until(lambda: job.status["attempt"] > 1, 600)
    noticed = time.monotonic() - started
    job.until(lambda: job.phase == "Training" and job.step > before, 900)
    print(f"{lost.name} lost: next attempt after {noticed:.0f} s, next step after {time.monotonic() - started:.0f} s")
    running = {pod["spec"]["nodeName"] for pod in job.pods() if "deletionTimestamp" not in pod["metadata"]}
    assert lost.name not in running, job.report()


def ends_as_if_nothing_had_happened(job: JobInPods) -> None:
    """Wait for its end; each prompt was issued and consumed once, in its order."""
    job.succeed()
    due = expected_journal(STEPS, PROMPTS_PER_STEP, INTERVAL, uids(epochs=STEPS))
    assert without_commits(job.journal) == without_commits(due)
    assert job.commits[-1] == STEPS


def test_a_job_over_two_nodes_bears_a_cut_cable_and_a_silent_kubelet_and_leaves_a_drained_node(
    kubectl: Kubectl, place: Workspace, nodes: tuple[Node, ...]
) -> None:
    job = trains_on(nodes, kubectl, place, MANY)
    faults.partition(nodes)
    time.sleep(CUT_S)  # the fault is a time
    faults.heal(nodes)
    job.goes_on()

    head = job.nodes_of("headgroup").pop()
    other = without(head, nodes)
    faults.stop_kubelet(other)
    job.until(lambda: not is_ready(other.name, kubectl))
    job.goes_on()
    faults.continue_kubelet(other)
    job.until(lambda: is_ready(other.name, kubectl))
    assert job.status["attempt"] == 1, job.report()

    saved = job.step
    goes_on_without(job, other, lambda: faults.drain(other, job.kubectl))
    first, second = job.attempts[:2]
    assert second["checkpointStep"] >= saved, "a drain saves first"
    assert first["nodes"] == {head: "Used", other.name: "Evicted"}

    job.change({"suspend": True})
    job.until(lambda: job.phase == "Suspended")
    done = job.journal[-1]["step"]
    due = expected_journal(done, PROMPTS_PER_STEP, INTERVAL, uids(epochs=MANY))
    assert without_commits(job.journal) == without_commits(due)


def test_a_job_goes_on_when_the_node_of_half_of_its_ranks_and_engines_loses_power(
    kubectl: Kubectl, place: Workspace, nodes: tuple[Node, ...]
) -> None:
    job = trains_on(nodes, kubectl, place, STEPS)
    head = job.nodes_of("headgroup").pop()
    lost = without(head, nodes)
    goes_on_without(job, lost, lambda: faults.power_off(lost))
    assert job.attempts[0]["nodes"] == {head: "Used", lost.name: "Unreachable"}
    faults.power_on(lost, kubectl, os.environ)
    ends_as_if_nothing_had_happened(job)
    job.until(lambda: job.pods() == [])


@pytest.mark.long  # the same as the test above, with the driver's node
def test_a_job_goes_on_when_the_node_of_its_head_loses_power(
    kubectl: Kubectl, place: Workspace, nodes: tuple[Node, ...]
) -> None:
    job = trains_on(nodes, kubectl, place, STEPS)
    lost = named(job.nodes_of("headgroup").pop(), nodes)
    goes_on_without(job, lost, lambda: faults.power_off(lost))
    assert job.attempts[0]["nodes"][lost.name] == "Unreachable"
    faults.power_on(lost, kubectl, os.environ)
    ends_as_if_nothing_had_happened(job)
