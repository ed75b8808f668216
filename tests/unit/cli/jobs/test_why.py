"""`rljob why`: one sentence, and the evidence for it."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.control import CurvePoint
from rljob_api.status import AttemptFailure, Condition, ConditionType, NodeFate, Phase
from rljob_cli.jobs import training
from rljob_cli.jobs.jobs import Job, Manifest, job_of
from rljob_cli.jobs.why import Seen, stuck, why
from rljob_operator.world.pod_stage import PodEvent
from support.api.sample_rljob_status import NOON, SAMPLE
from support.cli.sample_job import in_phase, raw
from support.cli.sample_job import job as sample_job
from support.operator.operator_world import NOW, Surroundings

AT = "2027-01-15T07:59:00Z"


def waiting_job(**quota: str) -> tuple[Job, Seen]:
    """Return a job whose first attempt has no pods, and what its user sees."""
    around = Surroundings()
    around.step()
    raw = {**around.raw, "metadata": {**around.raw["metadata"], "creationTimestamp": AT}}
    quotas = [{"metadata": {"name": "team-a", "namespace": "ml"}, "spec": {"hard": quota}}] if quota else []
    return job_of(raw), Seen(raw, around.observed.rayclusters(), quotas=quotas, limits=[])


def pod(name: str, **status: Any) -> Manifest:
    labels = {"ray.io/cluster": "sums-7f3a1-1", "ray.io/node-type": "worker"}
    metadata = {"name": f"sums-7f3a1-1-{name}", "labels": labels, "creationTimestamp": AT}
    return {"metadata": metadata, "spec": {"nodeName": "a"}, "status": status}


def with_pods(seen: Seen, *pods: Manifest, **events: tuple[PodEvent, ...]) -> Seen:
    return Seen(seen.job, seen.rayclusters, pods, {f"sums-7f3a1-1-{name}": each for name, each in events.items()})


def test_a_job_that_its_quota_can_never_take_says_so_with_the_nearest_setting():
    found = why(*waiting_job(pods="2"), NOW)
    assert found.sentence == (
        "it can never start: needs 3 pods; ResourceQuota team-a allows 2 pods in all; "
        "spec.placement: Colocated would need 2 pods"
    )
    assert ("capacity", "you may not read: nodes") in found.evidence


def test_room_that_others_hold_is_waited_for():
    job, seen = waiting_job(pods="4")
    seen.quotas[0]["status"] = {"used": {"pods": "2"}}
    found = why(job, seen, NOW)
    assert "it waits for room: needs 3 pods; ResourceQuota team-a leaves 2 pods" in found.sentence
    assert (found.blocker, found.since) == ("Quota", None)


def test_a_sandbox_that_cannot_be_made_is_the_sentence_and_its_event_the_evidence():
    job, seen = waiting_job()
    assert [each.name for each in stuck(with_pods(seen, pod("a")))] == ["sums-7f3a1-1-a"]
    event = PodEvent("FailedCreatePodSandBox", "no network", NOW)
    found = why(job, with_pods(seen, pod("a"), a=(event,)), NOW)
    assert found.blocker == "PodSandbox"
    assert found.since == NOW - 60
    assert found.sentence.startswith("sums-7f3a1-1-a: its sandbox cannot be made: no network (since ")
    assert ("event", "sums-7f3a1-1-a: FailedCreatePodSandBox: no network") in found.evidence


def test_nodes_count_only_where_all_pods_that_use_them_may_be_read():
    allocatable = {"cpu": "1", "memory": "1Gi", "pods": "1"}
    nodes = [{"metadata": {"name": "a"}, "spec": {}, "status": {"allocatable": allocatable}}]
    job, seen = waiting_job()
    found = why(job, replace(seen, nodes=nodes, others=[]), NOW)
    assert found.sentence == "it waits for room: needs 3 pods; all matching nodes together have 1 pods"
    assert ("capacity", "quotas and nodes have room for all pods") in why(job, replace(seen, nodes=nodes), NOW).evidence


@pytest.mark.parametrize(("status", "is_evidence"), [("False", True), ("Unknown", True), ("True", False)])
def test_a_condition_that_does_not_hold_is_evidence(status: str, is_evidence: bool):
    job = in_phase(Phase.PROVISIONING, ConditionType.CLUSTER_READY, status)
    found = why(job, Seen(raw(job.status)), NOW)
    line = ("condition", f"ClusterReady is {status}, Because: because")
    assert (line in found.evidence) is is_evidence


def test_the_conditions_of_a_job_that_has_ended_are_no_evidence():
    job = in_phase(Phase.FAILED, ConditionType.TRAINING, "False")
    assert not [kind for kind, _ in why(job, Seen(raw(job.status)), NOW).evidence if kind == "condition"]


def test_many_pods_are_counted():
    job, seen = waiting_job()
    found = why(job, with_pods(seen, *[pod(str(i)) for i in range(12)]), NOW)
    assert [text for kind, text in found.evidence if kind == "pod"][-1] == "and 4 more"


def test_a_job_that_trains_is_explained_by_its_condition():
    around = Surroundings().to_running()
    around.runs()
    around.step()
    raw = {**around.raw, "metadata": {**around.raw["metadata"], "creationTimestamp": AT}}
    job = job_of(raw)
    found = why(job, Seen(raw, around.observed.rayclusters(), pods=[pod("a", phase="Succeeded")]), NOW)
    assert (found.blocker, found.sentence) == (Phase.TRAINING, job.condition(ConditionType.TRAINING).message)


def test_a_status_of_a_newer_operator_and_a_job_without_status_are_read():
    job, seen = waiting_job()
    seen.job["status"]["somethingNew"] = 1
    assert why(job, with_pods(seen, pod("a")), NOW).sentence
    raw = {**seen.job, "status": {}}
    assert why(job_of(raw), Seen(raw), NOW).sentence == "no operator has seen it yet"


FAILURE = AttemptFailure(code="TrainOutOfMemory", title="the learner", remedy="lower it", evidence="log:7 CUDA")


def curve(*speeds: float) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(step=step, reward=step / 10, tokens_per_second=speed) for step, speed in enumerate(speeds))


def sound(status: str) -> tuple[Condition, ...]:
    said = {"reason": "Truncation,Mismatch", "message": "too long"}
    return (Condition(type=ConditionType.SOUND, status=status, last_transition_time=NOON, **said),)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"conditions": sound("False")}, "it trains, but Truncation, Mismatch: too long"),
        ({"conditions": sound("True")}, ""),
        (
            {"curve": curve(90, 90, 90, 90, 59, 40, 30)},
            "it is slow: engines generate 59 tokens/s, and the median of the",
        ),
        ({"curve": curve(90, 90, 90, 90, 60, 40, 30)}, ""),
        ({"curve": curve(90, 90, 30, 20, 10)}, ""),
        ({"phase": Phase.QUEUED, "conditions": sound("False")}, ""),
    ],
)
def test_a_job_that_trains_says_what_is_wrong_with_it(changes, sentence):
    found = training.sentence(sample_job(**{"phase": Phase.TRAINING, "conditions": (), **changes}))
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)


@pytest.mark.parametrize(("phase", "known"), [(Phase.FAILED, True), (Phase.RECOVERING, True), (Phase.TRAINING, False)])
def test_the_failure_of_the_last_attempt_is_the_sentence_until_the_next_one_trains(phase, known):
    attempts = (*SAMPLE.attempts[:-1], SAMPLE.attempts[-1].model_copy(update={"failure": FAILURE}))
    given = sample_job(phase=phase, conditions=(), attempts=attempts)
    assert training.sentence(given) == ("TrainOutOfMemory: the learner; lower it" if known else "")
    assert ("failure", "TrainOutOfMemory: log:7 CUDA") in tuple(training.evidence(given))


def test_evidence_has_phases_speed_and_reward():
    found = dict(training.evidence(sample_job(phase=Phase.TRAINING, curve=curve(90, 80, 40))))
    assert found["speed"] == "40 generated tokens/s; the median of the run is 80"
    assert found["reward"] == "0.2 at step 2; at step 0 it was 0"
    assert "rollout" in found["step"]


def test_nodes_that_failed_attempts_are_evidence():
    first = SAMPLE.attempts[0].model_copy(update={"nodes": {"gpu-7": NodeFate.EVICTED, "gpu-8": NodeFate.USED}})
    given = raw(SAMPLE.model_copy(update={"attempts": (first, *SAMPLE.attempts[1:])}))
    assert ("node", "gpu-7: Evicted in attempt 1") in why(job_of(given), Seen(given), NOW).evidence


def test_a_cluster_without_kuberay_is_the_reason_of_a_job_that_has_not_ended():
    job, seen = waiting_job()
    found = why(job, replace(seen, rayclusters=None), NOW)
    assert (found.blocker, found.evidence) == ("RayCluster", ())
    assert found.sentence.endswith("install KubeRay 1.6 or newer")
    ended = in_phase(Phase.SUCCEEDED, ConditionType.SUCCEEDED, "True")
    assert why(ended, replace(seen, rayclusters=None), NOW).sentence == "because"
