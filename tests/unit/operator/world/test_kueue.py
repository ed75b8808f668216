"""A job whose RayCluster Kueue suspends: before it admits the job, and when it evicts it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rljob_api.control import EngineState
from rljob_api.status import ToolPodOwner
from rljob_operator.children import children
from rljob_operator.identity import ClusterRef, Manifest
from rljob_operator.job.admission import admission
from rljob_operator.job.cluster_shape import digest
from rljob_operator.world import kueue
from rljob_operator.world.claims import Claim
from rljob_operator.world.kueue import Workload, job_of_workload, kept, workload_of
from rljob_operator.world.world import Defaults, DriverState, job_of
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, admitted, raw_job, running

WITH_KUEUE = replace(DEFAULTS, has_kueue=True)
CLUSTER = "sums-7f3a1-1"
BUILT = ClusterRef(CLUSTER)
LACKS = Workload(CLUSTER, message="insufficient quota for pods", since=NOW)
ADMITTED = Workload(CLUSTER, reserved=True, reason="Admitted", message="it is admitted", admitted_at=NOW + 600)
EVICTED = replace(LACKS, eviction="Kueue has evicted the job (Preempted: for another)")


class InQueue(Surroundings):
    """A job in a queue, with Kueue's part played by hand."""

    def __init__(self, defaults: Defaults = WITH_KUEUE, tools: Any = None, **scheduling: Any) -> None:
        super().__init__(raw_job(scheduling={"queue": "gpus", **scheduling}, rollout={"tools": tools} if tools else {}))
        self.defaults = defaults

    def suspend(self, is_suspended: bool, workload: Workload) -> None:
        for cluster in self.observed.rayclusters():
            cluster["spec"]["suspend"] = is_suspended
        self.observed = replace(self.observed, workloads=(workload,))
        if is_suspended:
            self.observed = replace(
                self.observed, pods=tuple(replace(pod, is_deleting=True) for pod in self.observed.pods)
            )

    def pods_gone(self) -> None:
        self.observed = replace(self.observed, pods=())

    def queued(self) -> "InQueue":
        self.step()
        self.suspend(True, LACKS)
        self.step()
        return self

    def trains(self) -> "InQueue":
        self.queued()
        self.suspend(False, ADMITTED)
        self.now = NOW + 600
        self.step()
        self.tool_pods_ready()
        self.pods_ready()
        self.step()
        self.ray_answers()
        self.step()
        self.runs(running(checkpoint=2))
        self.step()
        return self

    def evicted(self) -> "InQueue":
        self.trains()
        self.suspend(True, EVICTED)
        self.step()
        self.pods_gone()
        self.driver(state=DriverState.UNKNOWN)
        self.step()
        return self

    @property
    def attempts(self) -> list[Manifest]:
        found: list[Manifest] = self.status["attempts"]
        return found


def test_the_raycluster_carries_the_queue_and_its_priority_class():
    job = admitted(raw_job(scheduling={"queue": "gpus", "queuePriorityClass": "low"}))
    (cluster,) = [each for each in children.children(job, BUILT, 1, pods_of(job)) if each["kind"] == "RayCluster"]
    labels = cluster["metadata"]["labels"]
    assert (labels["kueue.x-k8s.io/queue-name"], labels["kueue.x-k8s.io/priority-class"]) == ("gpus", "low")
    assert "suspend" not in cluster["spec"]


def pods_of(job: Any) -> Any:
    return children.RolloutPods(1)


def test_a_label_names_a_queue_and_a_field_comes_before_it():
    raw = raw_job(scheduling={"queue": "gpus"})
    raw["metadata"]["labels"] = {kueue.QUEUE_LABEL: "other", kueue.PRIORITY_LABEL: "low"}
    spec = job_of(raw).spec
    assert spec is not None
    assert (spec.scheduling.queue, spec.scheduling.queue_priority_class) == ("gpus", "low")


@pytest.mark.parametrize("spec", [None, [], {"scheduling": 3}])
def test_a_spec_of_a_wrong_shape_stays_as_it_is(spec: Any):
    assert kueue.with_labels(spec, {kueue.QUEUE_LABEL: "gpus"}) == spec


def test_the_driver_does_not_get_what_only_kueue_reads():
    manifest = children.for_driver(admitted(raw_job(scheduling={"queue": "gpus"})).manifest)
    assert manifest["spec"]["scheduling"] == {}


def test_a_job_in_a_queue_is_refused_where_nobody_works_with_kueue():
    found = admission(job_of(raw_job(scheduling={"queue": "gpus"})), DEFAULTS)
    assert isinstance(found, Claim)
    assert (found.reason, "kueue.enabled" in found.message) == ("NoKueue", True)
    assert not isinstance(admission(job_of(raw_job(scheduling={"queue": "gpus"})), WITH_KUEUE), Claim)


def test_a_job_waits_as_queued_and_says_what_kueue_says():
    job = InQueue().queued()
    assert job.status["phase"] == "Queued"
    assert job.condition("Ready")["message"].startswith("insufficient quota for pods (since ")
    assert (job.condition("QuotaReserved")["status"], job.condition("QuotaReserved")["reason"]) == ("False", "Pending")
    assert job.plan().is_empty


def test_a_job_that_kueue_has_not_seen_says_so():
    job = InQueue()
    job.step()
    job.suspend(True, LACKS)
    job.observed = replace(job.observed, workloads=())
    job.step()
    assert job.condition("Ready")["message"] == "Kueue has not looked at the job yet"


def test_time_in_the_queue_counts_neither_for_the_start_deadline_nor_for_the_time_to_start():
    job = InQueue(startDeadlineSeconds=60).queued()
    job.now = NOW + 590
    job.step()
    assert job.status["phase"] == "Queued"
    job.suspend(False, ADMITTED)
    job.now = NOW + 601
    job.step()
    assert job.attempts[0]["startAfter"] == "2027-01-15T08:10:00Z"
    assert job.status["phase"] == "Provisioning"
    job.now = NOW + 661
    job.step()
    assert job.condition("Failed")["reason"] == "StartDeadlineExceeded"


def test_what_kueue_adds_to_pod_templates_is_no_drift():
    job = InQueue().trains()
    (cluster,) = job.observed.rayclusters()
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        group["template"]["metadata"]["labels"]["kueue.x-k8s.io/podset"] = "head"
        group["template"]["metadata"].setdefault("annotations", {})["kueue.x-k8s.io/workload"] = "w"
        group["template"]["spec"]["nodeSelector"] = {"pool": "spot"}
        group["template"]["spec"]["tolerations"] = [{"key": "spot", "operator": "Exists"}]
        group["template"]["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]
    assert job.plan().is_empty


def test_what_is_applied_again_keeps_what_kueue_has_added():
    job = InQueue().trains()
    (cluster,) = job.observed.rayclusters()
    cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"] = {"pool": "spot"}
    del cluster["spec"]["headGroupSpec"]["rayStartParams"]
    (applied,) = job.plan().apply
    assert applied["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"] == {"pool": "spot"}
    assert "rayStartParams" in applied["spec"]["headGroupSpec"]


def test_what_we_want_comes_before_what_others_have_changed():
    def of(selector: dict[str, str], tolerations: list[Manifest]) -> Manifest:
        template = {"metadata": {}, "spec": {"nodeSelector": selector, "tolerations": tolerations}}
        groups = [{"groupName": "trainer", "template": template}]
        return {"spec": {"headGroupSpec": {"template": template}, "workerGroupSpecs": groups}}

    found = kept(
        of({"pool": "ours"}, [{"key": "a"}]), of({"pool": "theirs", "zone": "b"}, [{"key": "b"}, {"key": "a"}])
    )
    template = found["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert template == {"nodeSelector": {"pool": "ours", "zone": "b"}, "tolerations": [{"key": "a"}, {"key": "b"}]}


def test_an_evicted_job_saves_is_queued_again_and_counts_as_no_failure():
    job = InQueue().evicted()
    first, second = job.attempts
    assert (first["cause"], first["exitCode"], first["checkpointStep"]) == ("Suspended", 7, 2)
    assert first["reason"] == "Kueue has evicted the job (Preempted: for another)"
    assert (second["cluster"], second["checkpointStep"]) == (CLUSTER, 2)
    assert (job.status["phase"], job.status["restarts"], job.status["recovery"]) == ("Queued", 0, [])
    assert "Kueue has evicted the job" in job.condition("Ready")["message"]
    assert job.condition("Degraded")["status"] == "False"


def test_a_checkpoint_that_was_saved_since_the_last_look_counts():
    job = InQueue().trains()
    job.suspend(True, EVICTED)
    job.runs(running(checkpoint=4))
    job.pods_gone()
    job.step()
    assert [attempt["checkpointStep"] for attempt in job.attempts] == [4, 4]


def test_an_attempt_is_not_over_while_one_of_its_evicted_pods_may_save():
    job = InQueue().trains()
    job.suspend(True, EVICTED)
    job.step()
    assert len(job.attempts) == 1
    assert job.condition("Training")["reason"] == "Evicted"


def test_pods_that_go_one_by_one_are_no_failure_of_the_run():
    job = InQueue().trains()
    job.suspend(True, EVICTED)
    job.runs(running(EngineState.DEAD, EngineState.DEAD, checkpoint=2))
    todo = job.step()
    assert not todo.orders.engines
    job.ends(1)
    job.step()
    job.pods_gone()
    job.step()
    assert [each.get("cause") for each in job.attempts] == ["Suspended", None]


def test_a_driver_is_not_judged_while_its_pods_are_evicted():
    job = InQueue().trains()
    job.suspend(True, EVICTED)
    job.now += 4000
    assert job.step().orders.stop is False
    assert "verdict" not in job.attempts[0]


def test_pods_that_vanish_without_kueue_are_no_eviction():
    job = InQueue().trains()
    job.pods_gone()
    job.step()
    assert len(job.attempts) == 1


def test_a_run_that_ends_while_it_is_evicted_has_ended():
    job = InQueue().trains()
    job.suspend(True, EVICTED)
    job.ends(0)
    job.step()
    assert job.status["phase"] == "Succeeded"


def test_an_evicted_job_resumes_on_its_raycluster_when_it_is_admitted_again():
    job = InQueue().evicted()
    job.suspend(False, replace(ADMITTED, admitted_at=NOW + 900))
    job.pods_ready()
    job.now = NOW + 901
    job.step()
    job.ray_answers()
    job.step()
    assert job.submitted == ["sums-7f3a1-attempt-1", "sums-7f3a1-attempt-2"]


def test_engines_of_a_job_in_a_queue_do_not_follow_the_spec_until_the_next_attempt():
    job = InQueue().trains()
    job.scale(4)
    todo = job.step()
    assert (todo.apply, todo.orders.scale) == ((), None)
    assert "the next attempt requests its current values" in job.condition("QuotaReserved")["message"]
    assert digest(*spec_of(2)) != digest(*spec_of(4))


def spec_of(engines: int) -> Any:
    job = admitted(raw_job(scheduling={"queue": "gpus"}, rollout={"engines": engines}))
    return job.manifest, job.spec


def condition(kind: str, status: str, reason: str, message: str) -> Manifest:
    at = "2027-01-15T08:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at}


def workload(*conditions: Manifest, **more: Any) -> Workload:
    owner = {"kind": "RayCluster", "name": CLUSTER, "controller": True}
    return workload_of({"metadata": {"ownerReferences": [owner]}, "status": {"conditions": list(conditions)}, **more})


def test_a_workload_says_why_it_waits():
    found = workload(condition("QuotaReserved", "False", "WaitingForQuota", "no\nroom"))
    assert (found.cluster, found.reserved, found.admitted_at) == (CLUSTER, False, None)
    assert (found.reason, found.sentence, found.since) == ("WaitingForQuota", "no room", NOW)


def test_a_workload_with_quota_may_still_wait_for_checks():
    raw = {
        "metadata": {"ownerReferences": [{"kind": "RayCluster", "name": CLUSTER}]},
        "status": {
            "conditions": [condition("QuotaReserved", "True", "QuotaReserved", "in gpus")],
            "admissionChecks": [{"name": "nodes", "state": "Pending"}, {"name": "policy", "state": "Ready"}],
        },
    }
    found = workload_of(raw)
    assert (found.reserved, found.admitted_at) == (True, None)
    assert found.message == "quota is reserved, and admission checks are open: nodes is Pending"


def test_an_admitted_workload_knows_since_when():
    found = workload(
        condition("QuotaReserved", "True", "QuotaReserved", "in gpus"),
        condition("Admitted", "True", "Admitted", "it is"),
    )
    assert (found.reserved, found.admitted_at, found.message) == (True, NOW, "it is")


def test_an_evicted_workload_says_why_until_it_is_admitted_again():
    gone = condition("Evicted", "True", "Preempted", "for another")
    waits = condition("QuotaReserved", "False", "Pending", "no room")
    assert workload(waits, gone).sentence == "Kueue has evicted the job (Preempted: for another); no room"
    assert workload(waits, {**gone, "status": "False"}).sentence == "no room"


@pytest.mark.parametrize(("evicted_at", "admitted_at"), [(NOW, None), (NOW - 60, NOW)])
def test_of_admitted_and_evicted_the_newer_one_counts(evicted_at: float, admitted_at: float | None):
    at = datetime.fromtimestamp(evicted_at, UTC).isoformat()
    found = workload(
        condition("QuotaReserved", "True", "QuotaReserved", "in gpus"),
        condition("Admitted", "True", "Admitted", "it is"),
        {**condition("Evicted", "True", "Preempted", "for another"), "lastTransitionTime": at},
    )
    assert (found.admitted_at, found.message) == (admitted_at, "it is" if admitted_at else "for another")


def test_a_deactivated_workload_says_so():
    assert workload(spec={"active": False}).message == "its Workload is deactivated: spec.active is false"


@pytest.mark.parametrize(
    ("owner", "job"),
    [
        ({"kind": "RayCluster", "name": "my-sums-7f3a1-12"}, "my-sums"),
        ({"kind": "RayCluster", "name": "somebodys"}, ""),
        ({"kind": "Job", "name": CLUSTER}, ""),
    ],
)
def test_a_workload_belongs_to_the_job_of_its_raycluster(owner: Manifest, job: str):
    assert job_of_workload({"metadata": {"ownerReferences": [owner]}}) == job


TOOLS = {"functions": ["python"], "concurrency": 2}


def owners_of_tools(around: InQueue) -> int:
    """Return how many objects make pods for tools."""
    kept = [child for child in around.observed.children if "deletionTimestamp" not in child["metadata"]]
    return sum(child["kind"] in tuple(ToolPodOwner) for child in kept)


@pytest.mark.parametrize(("owner", "number"), [(ToolPodOwner.STATEFUL_SET, 1), (ToolPodOwner.SANDBOX, 2)])
def test_a_job_in_the_queue_has_no_pods_for_tools(owner: ToolPodOwner, number: int):
    around = InQueue(replace(WITH_KUEUE, tool_pod_owner=owner), tools=TOOLS)
    around.step()
    assert owners_of_tools(around) == 0
    around.suspend(True, LACKS)
    around.step()
    assert owners_of_tools(around) == 0
    around.suspend(False, ADMITTED)
    around.step()
    assert owners_of_tools(around) == number


@pytest.mark.parametrize("owner", ToolPodOwner)
def test_an_evicted_driver_has_its_tools_until_it_has_saved(owner: ToolPodOwner):
    around = InQueue(replace(WITH_KUEUE, tool_pod_owner=owner), tools=TOOLS).trains()
    around.suspend(True, EVICTED)
    around.step()
    assert owners_of_tools(around) > 0
    around.pods_gone()
    around.driver(state=DriverState.UNKNOWN)
    around.step()
    assert around.status["phase"] == "Queued"
    assert owners_of_tools(around) == 0
    assert around.plan().is_empty
