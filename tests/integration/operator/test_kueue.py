"""Jobs in queues of the real Kueue, beside the real KubeRay: it lets them start, and it evicts them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from local_cluster.kubectl import Kubectl, Manifest
from rljob_operator.world.kueue import QUEUE_LABEL
from rljob_operator.world.silent_nodes import is_bound
from support.cli.command import rljob
from support.operator.fake_head import FakeHeads
from support.operator.operator_job import Job
from support.operator.operator_process import install_rights, kubeconfig_of_operator
from support.waiting import eventually

API = "kueue.x-k8s.io/v1beta2"
ADDED = {"type": "kwok"}
"""node labels of the flavor"""
TOLERATION = {"key": "rljob.dev/for-kueue", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture
def kubeconfig(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Path:
    """Of the operator's ServiceAccount, with the chart's rules for jobs in queues."""
    install_rights(kubectl, namespace, "--set", f"namespaces={{{namespace}}}", "--set=kueue.enabled=true")
    return kubeconfig_of_operator(kubectl, namespace, tmp_path)


@pytest.fixture
def quota(kueue_ready: None, kubectl: Kubectl, namespace: str) -> Iterator[Callable[[int], None]]:
    """Set how many pods the LocalQueue `gpus` may have; the priority classes `low` and `high` of it end in its name."""
    flavor = {"nodeLabels": ADDED, "tolerations": [TOLERATION]}
    classes = [
        {
            "apiVersion": API,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": f"{name}-{namespace}"},
            "value": value,
        }
        for name, value in (("low", 1), ("high", 1000))
    ]
    kubectl.apply(_named("ResourceFlavor", namespace, flavor), *classes)

    def set_to(pods: int) -> None:
        plenty = [{"name": name, "nominalQuota": "1Ti"} for name in ("cpu", "memory")]
        quotas = [{"name": namespace, "resources": [{"name": "pods", "nominalQuota": pods}, *plenty]}]
        spec = {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["pods", "cpu", "memory"], "flavors": quotas}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        }
        kubectl.apply(_named("ClusterQueue", namespace, spec))

    set_to(2)
    local = _named("LocalQueue", "gpus", {"clusterQueue": namespace})
    kubectl.apply({**local, "metadata": {"name": "gpus", "namespace": namespace}})
    yield set_to
    kubectl("delete", "rljobs", "--all", "-n", namespace)
    kubectl("delete", "clusterqueues,resourceflavors", namespace, "--wait=false")
    kubectl("delete", "workloadpriorityclasses", f"low-{namespace}", f"high-{namespace}", "--wait=false")


def _named(kind: str, name: str, spec: Manifest) -> Manifest:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def message(job: Job, kind: str) -> str:
    conditions = job.raw().get("status", {}).get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == kind), "")


def phase(job: Job) -> str:
    found: str = job.raw().get("status", {}).get("phase", "")
    return found


def cluster_of(kubectl: Kubectl, namespace: str) -> Manifest:
    (found,) = kubectl.get("rayclusters", "-n", namespace)["items"]
    return found


def test_a_job_waits_in_kueues_queue_and_keeps_what_kueue_adds(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable, heads: FakeHeads, quota: Callable
) -> None:
    start(more=("--kueue",))
    job = new_job(scheduling={"queue": "gpus"})
    eventually(lambda: message(job, "Ready"), lambda text: "insufficient quota for pods" in text)
    assert (phase(job), job.pods()) == ("Queued", [])
    assert job.conditions()["QuotaReserved"] == "False"
    shown = rljob("why", "sums", "-n", namespace, kubeconfig=kubectl.kubeconfig)
    assert f"it can never start: needs 3 pods; ClusterQueue {namespace} has 2 pods" in shown.out.splitlines()[0]
    assert "insufficient quota for pods" in shown.out
    quota(3)
    job.until("Training")
    assert job.conditions()["QuotaReserved"] == "True"
    cluster = cluster_of(kubectl, namespace)
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        assert group["template"]["spec"]["nodeSelector"] == ADDED
        own = [each for each in group["template"]["spec"]["tolerations"] if not is_bound(each)]
        assert own == [TOLERATION]
    job.patch('{"rollout":{"engines":4}}')
    eventually(lambda: message(job, "QuotaReserved"), lambda text: "next attempt requests its current values" in text)
    later = cluster_of(kubectl, namespace)
    assert later["metadata"]["generation"] == cluster["metadata"]["generation"]
    assert heads.head(namespace).scales == []


def test_an_evicted_job_is_queued_again_and_resumes_and_nothing_counts_as_a_failure(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable, heads: FakeHeads, quota: Callable
) -> None:
    quota(3)
    start(more=("--kueue",))
    low = new_job("low", scheduling={"queue": "gpus", "queuePriorityClass": f"low-{namespace}"})
    low.until("Training")
    evicted = heads.head(namespace, "low")
    high = new_job("high", scheduling={"queue": "gpus", "queuePriorityClass": f"high-{namespace}"})
    eventually(lambda: phase(low), lambda found: found == "Queued")
    eventually(lambda: message(low, "Ready"), lambda text: "Kueue has evicted the job (Preempted: " in text)
    evicted.end(7)
    high.until("Training")
    heads.head(namespace, "high").end(0)
    high.until("Succeeded")
    status = low.until("Training")
    first, second = status["attempts"]
    assert (first["cause"], first["checkpointStep"], second["checkpointStep"]) == ("Suspended", 2, 2)
    assert first["reason"].startswith("Kueue has evicted the job")
    assert first["cluster"] == second["cluster"]
    assert (status["attempt"], status["restarts"], status.get("recovery", [])) == (2, 0, [])


def test_the_label_of_a_job_names_a_queue_as_well(
    kubectl: Kubectl, namespace: str, new_job: Callable, start: Callable, quota: Callable
) -> None:
    job = new_job(suspend=True)
    kubectl("label", "rljob", "sums", "-n", namespace, f"{QUEUE_LABEL}=nowhere")
    start(more=("--kueue",))
    job.patch('{"suspend":false}')
    eventually(lambda: message(job, "Ready"), lambda text: "LocalQueue nowhere doesn't exist" in text)
    assert job.pods() == []
