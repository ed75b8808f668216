"""The operator in a pod of its own, as the chart installs it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from local_cluster.kubectl import Kubectl
from local_cluster.project import NAMESPACE, RELEASE, Workspace, helm
from support.operator.job_in_pods import JobInPods
from support.waiting import eventually

pytestmark = pytest.mark.timeout(1800)

OPERATOR = f"deployment/{RELEASE}-operator"
KINDS = "rayclusters,pods,services,secrets,configmaps,networkpolicies"


def children(kubectl: Kubectl, place: Workspace, job: str) -> list[str]:
    """Return what there is of a job."""
    found = kubectl.get(KINDS, "-n", place.namespace, "-l", f"rljob.dev/job={job}")["items"]
    return sorted(f"{each['kind']}/{each['metadata']['name']}" for each in found)


@contextmanager
def no_operator(kubectl: Kubectl) -> Iterator[None]:
    """Without a pod of it."""
    kubectl("scale", OPERATOR, "-n", NAMESPACE, "--replicas=0")
    kubectl("wait", "--for=delete", "pod", "-l=app.kubernetes.io/name=rljob-operator", "-n", NAMESPACE, "--timeout=60s")
    try:
        yield
    finally:
        kubectl("scale", OPERATOR, "-n", NAMESPACE, "--replicas=1")
        kubectl("rollout", "status", OPERATOR, "-n", NAMESPACE, "--timeout=120s")


def test_the_release_finds_itself_installed_well(kubectl: Kubectl) -> None:
    output = helm(kubectl, "test", RELEASE, "--timeout=2m")
    assert "Phase:          Succeeded" in output


@pytest.mark.long  # integration/operator/test_lifecycle.py has it without a node
def test_nothing_is_left_of_a_job_that_is_deleted_while_no_operator_runs(kubectl: Kubectl, place: Workspace) -> None:
    job = JobInPods(kubectl, place, training={"steps": 1000})
    job.until(lambda: job.phase == "Training")
    with no_operator(kubectl):
        assert len(children(kubectl, place, job.name)) >= 6
        kubectl("delete", "rljob", job.name, "-n", place.namespace, "--wait=false")
        eventually(lambda: children(kubectl, place, job.name), lambda left: left == [], deadline_s=90)
