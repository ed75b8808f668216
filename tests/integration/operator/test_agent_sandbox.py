"""Tools in pods that the real agent-sandbox makes, beside the real KubeRay. Simulated nodes "run" the pods."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster.agent_sandbox import CRD
from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl, Manifest
from rljob_api.tool_protocol import host
from rljob_operator.children.tool_pods import SANDBOX_API
from support.operator.fake_head import FakeHeads
from support.operator.operator_job import Job
from support.operator.operator_process import check
from support.waiting import eventually

pytestmark = pytest.mark.long  # the controller is two minutes of compiling
WITH_TOOLS = {"tools": {"functions": ["python"], "concurrency": 2}}
OPTION = ("--agent-sandbox",)
LEFT = "sandboxes,statefulsets,services,networkpolicies,secrets,pods"


@pytest.fixture
def chart_values() -> tuple[str, ...]:
    return ("--set=agentSandbox.enabled=true",)


def sandboxes(kubectl: Kubectl, namespace: str) -> dict[str, str]:
    """Return the uids of the Sandboxes, by name."""
    items = kubectl.get("sandboxes", "-n", namespace)["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def pods_for_tools(kubectl: Kubectl, namespace: str) -> dict[str, Manifest]:
    items = kubectl.get("pods", "-n", namespace, "-l", "rljob.dev/job=sums,rljob.dev/tools")["items"]
    return {item["metadata"]["name"]: item for item in items}


def running(kubectl: Kubectl, namespace: str) -> dict[str, str]:
    """Return the uids of the pods for tools that run, by name."""
    found = pods_for_tools(kubectl, namespace)
    return {name: pod["metadata"]["uid"] for name, pod in found.items() if pod["status"].get("phase") == "Running"}


def names_in_dns(kubectl: Kubectl, namespace: str, service: str) -> set[str]:
    """Return the names of single pods that a DNS server has for a headless Service."""
    items = kubectl.get("endpointslices", "-n", namespace, "-l", f"kubernetes.io/service-name={service}")["items"]
    endpoints = [endpoint for item in items for endpoint in item["endpoints"] or ()]
    return {f"{endpoint['hostname']}.{service}" for endpoint in endpoints if "hostname" in endpoint}


def left_of(kubectl: Kubectl, job: Job) -> list[str]:
    """Return what is left of a job, what others have made for it included."""
    items = kubectl.get(LEFT, "-n", job.namespace)["items"]
    found = [f"{item['kind']}/{item['metadata']['name']}" for item in items]
    return [name for name in found if f"/{job.name}-" in name]


def test_without_the_crd_other_jobs_train_and_these_wait_for_it(
    kubectl: Kubectl,
    kubeconfig: Path,
    namespace: str,
    new_job: Callable,
    start: Callable,
    request: pytest.FixtureRequest,
) -> None:
    if CRD in kubectl.names("crd"):
        pytest.skip("it is there: another test of this session has installed it")
    operator, job = start(more=OPTION), new_job(rollout=WITH_TOOLS)
    new_job("plain").until("Training")
    eventually(lambda: job.raw()["status"]["conditions"], lambda found: f"apis/{SANDBOX_API}" in str(found))
    assert "action=list kind=Sandbox outcome=unserved" in operator.log
    code, text = check(kubeconfig, namespace, *OPTION)
    assert code == 1
    (failed,) = (line for line in text.splitlines() if not line.startswith("ok "))
    assert failed.startswith("FAILED  kind Sandbox is not served: ")
    assert failed.endswith("; install agent-sandbox 0.5 or newer, or set agentSandbox.enabled to false")
    request.getfixturevalue("agent_sandbox_ready")
    job.until("Training")
    assert len(running(kubectl, namespace)) == 2
    assert check(kubeconfig, namespace, *OPTION)[0] == 0


def test_the_driver_finds_the_pods_of_its_sandboxes_and_lost_ones_come_again(
    kubectl: Kubectl,
    namespace: str,
    new_job: Callable,
    start: Callable,
    heads: FakeHeads,
    agent_sandbox_ready: None,
) -> None:
    start(more=OPTION)
    job = new_job(rollout=WITH_TOOLS)
    status = job.until("Training")
    assert status["resolved"]["toolPodOwner"] == "Sandbox"
    variable = re.search(r"RLJOB_TOOL_PODS=(\S+)", heads.head(namespace).entrypoints[0])
    assert variable is not None
    wanted = {host(variable[1], index) for index in range(2)}
    service = variable[1].partition(".")[2]
    eventually(lambda: names_in_dns(kubectl, namespace, service), lambda found: found == wanted)
    first, pods = sandboxes(kubectl, namespace), pods_for_tools(kubectl, namespace)
    assert set(first) == set(pods) == {name.partition(".")[0] for name in wanted}
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods.values()} == set(first.values())
    assert not any(pod["spec"]["automountServiceAccountToken"] for pod in pods.values())
    assert kubectl.names("statefulsets", "-n", namespace) == []

    deleted, evicted = sorted(first)
    kubectl("delete", "sandbox", deleted, "-n", namespace)
    failed = json.dumps({"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}})
    kubectl("patch", "pod", evicted, "-n", namespace, "--subresource=status", "--type=merge", "-p", failed)
    uids = {pod["metadata"]["uid"] for pod in pods.values()}
    eventually(
        lambda: running(kubectl, namespace), lambda found: set(found) == set(first) and not uids & set(found.values())
    )
    assert not set(first.values()) & set(sandboxes(kubectl, namespace).values())
    eventually(lambda: names_in_dns(kubectl, namespace, service), lambda found: found == wanted)
    assert heads.head(namespace).is_running, "the driver has not noticed"


def test_sandboxes_go_with_their_raycluster_and_nothing_is_left_of_an_ended_job(
    kubectl: Kubectl,
    namespace: str,
    new_job: Callable,
    start: Callable,
    heads: FakeHeads,
    agent_sandbox_ready: None,
) -> None:
    start(more=OPTION)
    job = new_job(rollout=WITH_TOOLS)
    job.until("Training")
    first = sandboxes(kubectl, namespace)
    job.patch('{"suspend":true}')
    eventually(
        lambda: (sandboxes(kubectl, namespace), pods_for_tools(kubectl, namespace)), lambda all_: all_ == ({}, {})
    )
    job.patch('{"suspend":false}')
    job.until("Training")
    assert len(running(kubectl, namespace)) == 2
    assert not set(first.values()) & set(sandboxes(kubectl, namespace).values())
    heads.head(namespace).end(0)
    job.until("Succeeded")
    eventually(lambda: left_of(kubectl, job), lambda found: found == [])


def test_the_operator_deletes_no_sandbox_of_others(
    kubectl: Kubectl, kubeconfig: Path, namespace: str, agent_sandbox_ready: None
) -> None:
    spec = {"podTemplate": {"spec": {"containers": [{"name": "a", "image": "a"}]}}}
    metadata = {"name": "of-a-tenant", "namespace": namespace}
    kubectl.apply({"apiVersion": SANDBOX_API, "kind": "Sandbox", "metadata": metadata, "spec": spec})
    where = f"/apis/{SANDBOX_API}/namespaces/{namespace}/sandboxes/of-a-tenant?dryRun=All"
    as_operator = Kubectl(kubectl.program, kubeconfig)

    def answer() -> str:
        try:
            return as_operator("delete", f"--raw={where}")
        except ClusterError as error:
            return str(error)

    # The API server takes some time to load a new policy.
    eventually(answer, lambda text: "of-a-tenant belongs to no RLJob" in text)
