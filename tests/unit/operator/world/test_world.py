"""What the operator reads of jobs and pods as the API server shows them."""

from typing import Any

import pytest

from rljob_operator.identity import Manifest
from rljob_operator.world.pod_stage import PodStage, Stage
from rljob_operator.world.world import Observed, Pod, job_of, pod_of, seconds
from support.operator.operator_world import raw_job


def raw_pod(labels: dict[str, str] | None = None, **status: Any) -> Manifest:
    return {"metadata": {"name": "a-pod", "labels": labels or {}}, "status": status}


def test_a_pod_is_known_by_its_cluster_group_and_address():
    labels = {"ray.io/cluster": "sums-7f3a1-1", "ray.io/group": "rollout", "ray.io/node-type": "worker"}
    ready = [{"type": "Ready", "status": "True"}]
    assert pod_of(raw_pod(labels, podIP="10.0.0.1", conditions=ready)) == Pod(
        "a-pod",
        "sums-7f3a1-1",
        is_head=False,
        is_ready=True,
        is_deleting=False,
        stage=None,
        group="rollout",
        ip="10.0.0.1",
    )


def test_a_pod_without_labels_and_status_belongs_to_no_cluster():
    nothing = PodStage(Stage.SCHEDULING, 0.0)
    assert pod_of({"metadata": {"name": "a-pod"}}) == Pod("a-pod", "", False, False, False, nothing, "", None)


def test_a_pod_of_tools_is_known_by_its_label():
    assert pod_of(raw_pod({"rljob.dev/tools": "sums-7f3a1-1"})).tools_of == "sums-7f3a1-1"


def test_the_head_is_known_by_its_label():
    assert pod_of(raw_pod({"ray.io/node-type": "head"})).is_head


KILLED = {"reason": "OOMKilled", "finishedAt": "2027-01-15T08:00:00Z"}


@pytest.mark.parametrize(
    ("container", "ran_out"),
    [
        ({"name": "ray-head", "state": {"terminated": KILLED}}, True),
        ({"name": "ray-worker", "state": {"running": {}}, "lastState": {"terminated": KILLED}}, True),
        ({"name": "ray-head", "state": {"running": {}}, "lastState": {"terminated": {"reason": "Error"}}}, False),
        ({"name": "istio-proxy", "state": {"running": {}}, "lastState": {"terminated": KILLED}}, False),
        ({"name": "ray-head"}, False),
    ],
)
def test_a_pod_that_ran_out_of_memory_is_known_by_the_end_of_ray_s_container(container: dict[str, Any], ran_out: bool):
    found = pod_of(raw_pod(containerStatuses=[container])).out_of_memory_at
    assert found == (1_800_000_000.0 if ran_out else None)


def test_the_age_of_a_pod_is_read():
    raw = raw_pod()
    raw["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    assert pod_of(raw).created == 1_800_000_000.0


def test_a_job_is_read_without_what_the_api_server_adds():
    raw = raw_job()
    raw["metadata"] |= {"resourceVersion": "7", "managedFields": ["much"]}
    job = job_of({**raw, "status": {"phase": "Training"}})
    assert job.manifest == {**raw, "metadata": {"name": "sums", "namespace": "ml"}}
    assert (job.key, job.generation, job.resource_version, job.status) == ("ml/sums", 1, "7", {"phase": "Training"})
    assert job.is_deleting is False


def test_a_job_without_a_spec_has_problems_and_no_spec():
    raw = raw_job()
    del raw["spec"], raw["metadata"]["generation"]
    job = job_of(raw)
    assert (job.spec, job.generation, job.resource_version, job.status) == (None, 1, "", {})
    assert job.problems


def test_pods_that_are_being_deleted_do_not_count():
    stays, goes = (Pod(name, "c", False, True, name == "goes", None) for name in ("stays", "goes"))
    other = Pod("other", "d", False, True, False, None)
    assert Observed(pods=(stays, goes, other)).pods_of("c") == (stays,)


def test_a_child_is_found_by_kind_and_name():
    children = tuple({"kind": kind, "metadata": {"name": name}} for kind in ("Service", "RayCluster") for name in "ab")
    observed = Observed(children=children)
    assert observed.child("RayCluster", "b") is children[3]
    assert observed.child("RayCluster", "c") is None
    assert observed.rayclusters() == children[2:]


def test_a_time_is_read_as_unix_seconds():
    assert seconds("2027-01-15T08:00:00Z") == 1_800_000_000.0


SILENT = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
CRASHED = [
    {"type": "Ready", "status": "False", "reason": "ContainersNotReady"},
    {"type": "ContainersReady", "status": "False"},
]
GATED = [{**SILENT[0], "reason": "ReadinessGatesNotReady"}, SILENT[1]]


@pytest.mark.parametrize(("conditions", "silent"), [(SILENT, True), (CRASHED, False), (GATED, False), ([], False)])
def test_a_pod_that_the_node_controller_alone_calls_not_ready_is_on_a_silent_node(conditions, silent):
    assert pod_of(raw_pod(conditions=conditions)).is_on_silent_node is silent


@pytest.mark.parametrize(
    ("status", "disruption"),
    [
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]},
            "DeletionByPodGC",
        ),
        ({"conditions": [{"type": "DisruptionTarget", "status": "False", "reason": "DeletionByPodGC"}]}, ""),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({}, ""),
    ],
)
def test_why_kubernetes_ends_a_pod_is_read_from_its_condition_or_its_status(status, disruption):
    assert pod_of(raw_pod(**status)).disruption == disruption


def test_a_pod_was_deleted_a_grace_period_before_the_time_that_its_deletion_shows():
    raw = raw_pod()
    raw["metadata"] |= {"deletionTimestamp": "2027-01-15T08:02:00Z", "deletionGracePeriodSeconds": 120}
    found = pod_of(raw)
    assert (found.deleted_at, found.gone_by) == (1_800_000_000.0, 1_800_000_120.0)
