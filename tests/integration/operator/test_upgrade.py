"""A newer CRD and operator over jobs of an older operator, of which one trains."""

import base64
from collections.abc import Callable, Iterator

import pytest

from local_cluster.control_plane import OUR_CRDS
from local_cluster.kubectl import Kubectl, Manifest
from rljob_operator.identity import secret_name, token_key
from support.operator import older_operator
from support.operator.fake_head import FakeHeads
from support.operator.older_operator import FAILED, SUCCEEDED, TRAINS, make_older_jobs
from support.operator.operator_process import upgrade_rights
from support.waiting import eventually

pytestmark = pytest.mark.timeout(900)
KEPT = ("attempt", "startTime", "lastCheckpoint", "directory", "curve")
KEPT_AT_THE_END = (*KEPT, "phase", "phaseSince", "completionTime")
CRD = "rljobs.rljob.dev"


def replace_crd(kubectl: Kubectl, file: str) -> None:
    kubectl("replace", "-f", file)
    kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")


def includes(now: list[Manifest], then: list[Manifest]) -> bool:
    """Return whether attempts are as they were, with new fields at most."""
    return [{**new, **old} for new, old in zip(now, then, strict=True)] == now


def said(status: Manifest) -> dict[str, str]:
    """Return what the conditions say, by their types."""
    return {each["type"]: each["message"] for each in status["conditions"]}


@pytest.fixture
def upgrade(kubectl: Kubectl) -> Iterator[Callable[[], None]]:
    """Install the older CRD; gives what installs today's."""
    (today,) = map(str, OUR_CRDS)
    replace_crd(kubectl, str(older_operator.CRD))
    yield lambda: replace_crd(kubectl, today)
    replace_crd(kubectl, today)


def token_of(kubectl: Kubectl, namespace: str) -> str:
    """Return the control token in the Secret that the newest RayCluster of the job that trains has."""
    clusters = kubectl.get("raycluster", "-n", namespace, "-l", f"rljob.dev/job={TRAINS}")["items"]
    newest = max(clusters, key=lambda each: int(each["metadata"]["name"].rpartition("-")[2]))
    job = kubectl.get("rljob", TRAINS, "-n", namespace)["metadata"]
    secret = kubectl.get("secret", secret_name(TRAINS, job["uid"], token_key(newest)), "-n", namespace)
    return base64.b64decode(secret["data"]["token"]).decode()


def test_running_and_ended_jobs_outlast_an_upgrade(
    kubectl: Kubectl, namespace: str, upgrade: Callable[[], None], start: Callable, heads: FakeHeads
) -> None:
    def status(job: str) -> Manifest:
        found: Manifest = kubectl.get("rljob", job, "-n", namespace)["status"]
        return found

    def living() -> dict[str, tuple[str, str]]:
        items = kubectl.get("pods,rayclusters", "-n", namespace)["items"]
        return {each["metadata"]["uid"]: (each["kind"], each["metadata"]["name"]) for each in items}

    make_older_jobs(kubectl, namespace, heads)
    kubectl("wait", "--for=jsonpath={.status.readyWorkerReplicas}=2", "raycluster", "--all", "-n", namespace)
    before, ended, lives = status(TRAINS), {job: status(job) for job in (SUCCEEDED, FAILED)}, living()
    assert (len(lives), before["attempt"]) == (4, 2)

    upgrade()
    upgrade_rights(kubectl, namespace, "--set", f"namespaces={{{namespace}}},readableSecrets=null")
    random = token_of(kubectl, namespace)
    start()
    head = heads.head(namespace)
    head.change(progress=head.status.progress.model_copy(update={"step": 4}))
    after = eventually(lambda: status(TRAINS), lambda now: now["progress"]["step"] == 4, deadline_s=90, poll_s=0.5)
    assert after["phase"] == "Training"
    assert {name: after[name] for name in KEPT} == {name: before[name] for name in KEPT}
    assert includes(after["attempts"], before["attempts"])
    assert living() == lives
    assert (heads.submissions, head.drains) == ([], 0)
    eventually(lambda: kubectl.names("service", "-n", namespace, "-l", "rljob.dev/job"), lambda left: len(left) == 1)
    for job, then in ended.items():
        now = status(job)
        assert {name: now[name] for name in KEPT_AT_THE_END} == {name: then[name] for name in KEPT_AT_THE_END}
        assert includes(now["attempts"], then["attempts"])

    assert token_of(kubectl, namespace) == random

    head.end(5)
    eventually(lambda: (heads.submissions, said(status(TRAINS))), lambda seen: len(seen[0]) == 1, 120, poll_s=0.5)
    assert heads.submissions[0].endswith("-attempt-3")
    resumed = eventually(lambda: status(TRAINS), lambda now: now["phase"] == "Training", deadline_s=90, poll_s=0.5)
    assert (resumed["attempt"], resumed["directory"]) == (3, before["directory"])
    assert resumed["attempts"][-1]["cluster"].endswith("-3")
    assert token_of(kubectl, namespace) != random, "a new RayCluster has a derived token"


@pytest.mark.long
def test_a_driver_whose_token_the_operator_may_not_read_is_replaced_once(
    kubectl: Kubectl, namespace: str, upgrade: Callable[[], None], start: Callable, heads: FakeHeads
) -> None:
    """As with Argo CD, whose rendering looks nothing up, and no names in `readableSecrets`."""
    make_older_jobs(kubectl, namespace, heads)
    kubectl("wait", "--for=jsonpath={.status.readyWorkerReplicas}=2", "raycluster", "--all", "-n", namespace)
    random, head = token_of(kubectl, namespace), heads.head(namespace)
    upgrade()
    operator = start()

    def training() -> tuple[int, str]:
        status = kubectl.get("rljob", TRAINS, "-n", namespace)["status"]
        return status["attempt"], status["phase"]

    eventually(training, lambda now: now[0] == 3, deadline_s=150, poll_s=0.5)
    head.end(7)
    eventually(training, lambda now: now == (3, "Training"), deadline_s=120, poll_s=0.5)
    assert token_of(kubectl, namespace) != random
    assert "outcome=forbidden" in operator.log
