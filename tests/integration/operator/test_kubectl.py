"""What kubectl's verbs do with an RLJob that the operator takes care of."""

import re
import subprocess
from collections.abc import Callable

import pytest

from local_cluster.kubectl import Kubectl
from rljob_api.control import EngineState
from support.operator.fake_head import FakeHeads
from support.operator.operator_job import Job
from support.waiting import eventually


def test_wait_returns_when_the_job_has_succeeded(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    start()
    job = new_job()
    job.until("Training")
    wait = ["wait", "--for=condition=Succeeded", "rljob/sums", "-n", job.namespace, "--timeout=60s"]
    waiting = subprocess.Popen([kubectl.program, f"--kubeconfig={kubectl.kubeconfig}", *wait], stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(3)
    heads.head(job.namespace).end(0)
    assert waiting.communicate(timeout=60)[0] == b"rljob.rljob.dev/sums condition met\n"
    assert waiting.returncode == 0


@pytest.mark.parametrize("runs", [True, False], ids=["operator", "no-operator"])
@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_all_of_a_job_goes_with_it(
    kubectl: Kubectl, new_job: Callable, start: Callable, cascade: str, runs: bool
) -> None:
    operator = start()
    job = new_job()
    job.until("Training")
    assert {child.partition("/")[0] for child in job.children()} == CHILDREN
    if not runs:
        assert operator.terminate() == 0
    kubectl("delete", "rljob", "sums", "-n", job.namespace, f"--cascade={cascade}", "--timeout=60s")
    in_the_end(job, cascade)
    assert named_like(kubectl, job) == set()


CHILDREN = {"RayCluster", "ConfigMap", "Secret", "Service", "NetworkPolicy"}
KINDS = "rljobs,rayclusters,configmaps,secrets,services,networkpolicies,pods,endpointslices,rolebindings,jobs"


def in_the_end(job: Job, cascade: str) -> None:
    """Wait until nothing is left; in the foreground nothing is left when the job itself is gone."""
    deadline_s = 0.0 if cascade == "foreground" else 60.0
    eventually(lambda: (job.children(), job.pods()), lambda left: not any(left), deadline_s)


def named_like(kubectl: Kubectl, job: Job) -> set[str]:
    """Return what is there whose name begins with that of the job, by whomever it was made."""
    seen = eventually(
        lambda: kubectl.get(KINDS, "-n", job.namespace)["items"],
        lambda items: not [item for item in items if item["metadata"]["name"].startswith(f"{job.name}-")],
    )
    return {item["metadata"]["name"] for item in seen if item["metadata"]["name"].startswith(f"{job.name}-")}


def test_describe_shows_what_happened_in_order_and_once(
    kubectl: Kubectl, new_job: Callable, start: Callable, heads: FakeHeads
) -> None:
    operator = start()
    job = new_job()
    job.until("Training")
    head = heads.head(job.namespace)
    first, second = head.status.engines
    head.change(engines=(first.model_copy(update={"state": EngineState.DEAD, "last_error": "killed"}), second))
    eventually(job.events, lambda reasons: "RestartEngine" in reasons)
    assert operator.terminate() == 0
    start("second")
    head.end(5)
    eventually(lambda: len(heads.submissions), lambda count: count == 2)
    job.until("Training")
    head.end(0)
    eventually(job.events, lambda reasons: "Completed" in reasons)
    events = described(kubectl, job)
    assert [reason for _, reason, _ in events] == [
        "PodsReady",
        "Running",
        "EngineDown",
        "RestartEngine",
        "Restarted",
        "RestartDriver",
        "Running",
        "Completed",
    ]
    assert len(set(events)) == len(events)


def described(kubectl: Kubectl, job: Job) -> list[tuple[str, ...]]:
    """Return type, reason and message of each event as `kubectl describe` shows them."""
    text = kubectl("describe", "rljob", job.name, "-n", job.namespace).partition("\nEvents:\n")[2]
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()[2:]]
    return [(kind, reason, message) for kind, reason, _, _, message in rows]
