"""`rljob why`: one sentence, and the evidence for it."""

from typing import Any

from rljob_api.status import ConditionType, Phase
from rljob_cli.jobs import Job, Manifest, job_of
from rljob_cli.why import Seen, stuck, why
from rljob_operator.pod_stage import PodEvent
from support.operator.operator_world import NOW, Surroundings

AT = "2027-01-15T07:59:00Z"


def waiting_job(**quota: str) -> tuple[Job, Seen]:
    """Return a job whose first attempt has no pods, and what its user sees."""
    around = Surroundings()
    around.step()
    raw = {**around.raw, "metadata": {**around.raw["metadata"], "creationTimestamp": AT}}
    quotas = [{"metadata": {"name": "team-a", "namespace": "ml"}, "spec": {"hard": quota}}] if quota else []
    return job_of(raw), Seen(raw, around.world.rayclusters(), quotas=quotas, limits=[])


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
    assert "it waits for room: needs 3 pods; ResourceQuota team-a leaves 2 pods" in why(job, seen, NOW).sentence


def test_a_sandbox_that_cannot_be_made_is_the_sentence_and_its_event_the_evidence():
    job, seen = waiting_job()
    assert [each.name for each in stuck(with_pods(seen, pod("a")))] == ["sums-7f3a1-1-a"]
    event = PodEvent("FailedCreatePodSandBox", "no network", NOW)
    found = why(job, with_pods(seen, pod("a"), a=(event,)), NOW)
    assert found.blocker == "PodSandbox"
    assert found.since == NOW - 60
    assert found.sentence.startswith("sums-7f3a1-1-a: its sandbox cannot be made: no network (since ")
    assert ("event", "sums-7f3a1-1-a: FailedCreatePodSandBox: no network") in found.evidence


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
    found = why(job, Seen(raw, around.world.rayclusters(), pods=[pod("a", phase="Succeeded")]), NOW)
    assert (found.blocker, found.sentence) == (Phase.TRAINING, job.condition(ConditionType.TRAINING).message)


def test_a_status_of_a_newer_operator_and_a_job_without_status_are_read():
    job, seen = waiting_job()
    seen.job["status"]["somethingNew"] = 1
    assert why(job, with_pods(seen, pod("a")), NOW).sentence
    raw = {**seen.job, "status": {}}
    assert why(job_of(raw), Seen(raw), NOW).sentence == "no operator has seen it yet"
