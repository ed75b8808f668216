"""The chart as it is installed by default: its webhook refuses in words, and no manifest stops it or the operator."""

import json
import uuid
from collections.abc import Iterator

import pytest

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl, Manifest
from local_cluster.project import NAMESPACE
from support.operator.operator_world import raw_job
from support.waiting import eventually

pytestmark = pytest.mark.timeout(1800)

NESTED = "NESTED"
"""stands for what is nested too deeply for Python's writer of JSON"""


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace with a quota of 8 GPUs."""
    name = f"tenant-{uuid.uuid4().hex[:8]}"
    kubectl.make_namespace(name)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": name}}
    kubectl.apply({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "8"}}})
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def job(namespace: str, name: str = "sums", **sections: object) -> Manifest:
    """Return a job whose image no node has: it gets no further than its pods."""
    raw = raw_job(name, **{"runtime": {"device": "Cpu", "image": "rljob.local/absent"}, **sections})
    raw["metadata"] = {"name": name, "namespace": namespace}
    return raw


def created(kubectl: Kubectl, manifest: Manifest, levels: int = 0) -> str:
    """Create a job; return what kubectl prints, or why the job was refused."""
    text = json.dumps(manifest).replace(f'"{NESTED}"', "[" * levels + "]" * levels)
    try:
        return kubectl("create", "-f", "-", given=text)
    except ClusterError as error:
        return str(error)


def restarts(kubectl: Kubectl) -> list[int]:
    """Return how often the containers of operator and webhook have started again."""
    pods = kubectl.get("pods", "-n", NAMESPACE)["items"]
    statuses = [each for pod in pods for each in pod["status"].get("containerStatuses", [])]
    assert len(statuses) == 4, "two replicas of the operator, and two of the webhook"
    return [each["restartCount"] for each in statuses]


def phase(kubectl: Kubectl, namespace: str, name: str) -> str | None:
    # Not the whole object: Python's reader of JSON does not get to the end of the nested one.
    return kubectl("get", "rljob", name, "-n", namespace, "-o", "jsonpath={.status.phase}").strip() or None


def reviewed(kubectl: Kubectl, namespace: str) -> str:
    """Return why a job with an unknown argument is refused; the CRD cannot know all arguments of SGLang."""
    # Until the API server knows the webhook, it takes such a job.
    name = f"typo-{uuid.uuid4().hex[:8]}"
    return created(kubectl, job(namespace, name, extraArgs={"sglang": {"mem-fraction-statik": 0.5}}))


def test_a_job_over_its_quota_is_refused_with_the_numbers(kubectl: Kubectl, namespace: str) -> None:
    eventually(lambda: reviewed(kubectl, namespace), lambda said: "mem-fraction-static" in said)
    gpus = {"runtime": {"device": "Gpu", "image": "rljob.local/absent"}, "placement": "Colocated"}
    large = job(namespace, training={"steps": 10, "nodes": 2, "gpusPerNode": 8}, **gpus)
    said = created(kubectl, large)
    assert "denied the request" in said
    assert "16" in said and "8" in said and "gpus" in said


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({"extraArgs": {"sglang": {"mem-fraction-static": NESTED}}}, id="1,200 levels"),
        pytest.param(
            {"training": {"steps": 10, "nodes": 4000, "gpusPerNode": 1000}, "placement": "Colocated"}, id="4M ranks"
        ),
    ],
)
def test_a_manifest_of_one_tenant_stops_nobody_else(
    sections: dict[str, object], kubectl: Kubectl, namespace: str
) -> None:
    before = restarts(kubectl)
    said = created(kubectl, job(namespace, "evil", **sections), levels=1200)
    if "created" in said:
        eventually(lambda: phase(kubectl, namespace, "evil"), lambda found: found == "Invalid")
    assert "created" in created(kubectl, job(namespace, "good"))
    eventually(lambda: phase(kubectl, namespace, "good"), lambda found: found is not None)
    assert restarts(kubectl) == before
