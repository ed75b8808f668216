"""What everything here runs under: the operator with the rights of the chart, jobs in a `restricted` namespace."""

from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl
from support.waiting import eventually


@pytest.fixture
def as_operator(kubectl: Kubectl, kubeconfig: Path) -> Kubectl:
    return Kubectl(kubectl.program, kubeconfig)


def test_the_operator_is_its_service_account(as_operator: Kubectl, namespace: str) -> None:
    assert f"system:serviceaccount:{namespace}:{namespace}-operator" in as_operator("auth", "whoami")


@pytest.mark.parametrize(
    "request_",
    [
        ("get", "secrets"),
        ("get", "secret", "of-a-tenant"),
        ("get", "secrets", "--watch"),
        ("patch", "secret", "of-a-tenant", "--patch={}"),
        ("get", "configmap", "of-a-tenant"),
        ("get", "rljobs", "-n", "default"),
        ("delete", "pod", "any"),
        ("create", "role", "more", "--verb=get", "--resource=pods"),
    ],
)
def test_the_operator_is_not_allowed_what_it_does_not_do(
    as_operator: Kubectl, namespace: str, request_: tuple[str, ...]
) -> None:
    with pytest.raises(ClusterError, match="forbidden"):
        as_operator("-n", namespace, *request_)


def test_the_operator_runs_a_job_and_reads_no_secret_but_its_key(
    kubectl: Kubectl, as_operator: Kubectl, namespace: str, new_job: Callable, start: Callable
) -> None:
    kubectl("create", "secret", "generic", "of-a-tenant", "--from-literal=password=x", "-n", namespace)
    operator, job = start(), new_job()
    job.until("Training")
    made = kubectl.names("secret", "-n", namespace)
    readable = {name for name in made if may_read(as_operator, name, namespace)}
    assert readable == {f"{namespace}-operator-key"} < set(made) - {"of-a-tenant"}
    operator.terminate()
    start("next")
    job.until("Training")
    assert job.raw()["status"]["attempt"] == 1


def may_read(as_operator: Kubectl, secret: str, namespace: str) -> bool:
    """Return whether the operator gets a Secret, from the API server itself."""
    try:
        as_operator("get", "secret", secret, "-n", namespace)
    except ClusterError as error:
        assert "forbidden" in str(error)
        return False
    return True


def test_the_namespace_takes_no_pod_that_is_not_restricted(kubectl: Kubectl, namespace: str) -> None:
    with pytest.raises(ClusterError, match=r'violates PodSecurity "restricted'):
        kubectl("run", "careless", "--image=any", "-n", namespace)


def test_every_container_of_a_job_is_as_restricted_says_kuberays_own_too(new_job: Callable, start: Callable) -> None:
    start()
    job = new_job()
    pods = eventually(job.pods, lambda pods: len(pods) == 3)
    containers = [
        each for pod in pods for kind in ("initContainers", "containers") for each in pod["spec"].get(kind, ())
    ]
    assert sum(each["name"] == "wait-gcs-ready" for each in containers) == 2
    assert {str(each["securityContext"]) for each in containers} == {
        str({"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True})
    }


def test_the_api_server_accepts_the_policy_with_limited_egress(
    kubectl: Kubectl, new_job: Callable, start: Callable, namespace: str
) -> None:
    start(more=('--egress=[{"ports":[{"port":443}]}]',))
    new_job()
    (policy,) = eventually(
        lambda: kubectl.get("networkpolicy", "-n", namespace)["items"], lambda found: len(found) == 1
    )
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["egress"][-1] == {"ports": [{"port": 443, "protocol": "TCP"}]}
    (_, operator) = policy["spec"]["ingress"]
    assert operator["from"][0]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
