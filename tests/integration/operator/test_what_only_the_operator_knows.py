"""What an API server cannot know of a manifest: a condition says what is wrong, and what would be right."""

from collections.abc import Callable
from typing import Any

import pytest

from local_cluster.kubectl import Kubectl
from support.operator.operator_job import Job
from support.waiting import eventually

RUNS = {"volumes": [{"name": "runs", "emptyDir": {}}], "volumeMounts": [{"name": "runs", "mountPath": "/runs"}]}


def message(job: Job, kind: str) -> str:
    conditions = job.raw()["status"].get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == kind and each["status"] == "False"), "")


@pytest.mark.parametrize(
    ("sections", "reason", "says"),
    [
        ({"extraArgs": {"sglang": {"mem-fraction-statics": 0.5}}}, "BadManifest", "mem-fraction-static"),
        ({"data": {"train": {"reasoningGym": {"task": "chain_sums", "size": 10}}}}, "BadManifest", "chain_sum"),
        ({"runtime": {"device": "Cpu", **RUNS, "volumes": []}}, "BadManifest", "is not a volume of spec.runtime"),
        ({"checkpoint": {"directory": "/else"}}, "CheckpointsNotShared", "mount a volume there"),
    ],
)
def test_a_manifest_that_cannot_run_here_is_not_admitted(
    new_job: Callable, start: Callable, sections: dict[str, Any], reason: str, says: str
) -> None:
    start()
    job = new_job(**sections)
    status = job.until("Admitted", "False")
    admitted = next(each for each in status["conditions"] if each["type"] == "Admitted")
    assert admitted["reason"] == reason
    assert says in admitted["message"]
    assert "spec." in admitted["message"]
    assert job.conditions()["Stalled"] == "True"
    assert job.children() == set()


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"scheduling": {"nodeSelector": {"pool": "none"}}}, "didn't match Pod's node affinity/selector"),
        (
            {"runtime": {"volumes": [{"name": "host", "hostPath": {"path": "/data"}}]}},
            'violates PodSecurity "restricted:latest": restricted volume types (volume "host"',
        ),
        ({"runtime": {"headResources": {"claims": [{"name": "nic"}] * 2}}}, "rayclusters/sums-"),
    ],
)
def test_a_job_that_waits_says_what_it_waits_for(
    new_job: Callable, start: Callable, sections: dict[str, Any], says: str
) -> None:
    start()
    job = new_job(**sections)
    eventually(lambda: message(job, "ClusterReady"), lambda text: says in text)
    assert says in message(job, "Ready")


def test_a_quota_that_has_no_room_is_reported(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable
) -> None:
    kubectl("create", "quota", "few", "--hard=pods=1", "-n", namespace)
    start(more=("--queue=Off",))  # otherwise the job waits in the queue before that
    job = new_job()
    eventually(lambda: message(job, "ClusterReady"), lambda text: "exceeded quota: few" in text)
    kubectl("delete", "quota", "few", "-n", namespace)
    job.until("ClusterReady", deadline_s=120)
