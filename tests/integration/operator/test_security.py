"""What everything here runs under: the operator with the rights of the chart, jobs in a `restricted` namespace."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from local_cluster.errors import ClusterError
from local_cluster.kubectl import Kubectl, Manifest
from rljob_operator.identity import API_VERSION, KIND, MANAGED_BY
from support.waiting import eventually

OWNER = {"name": "any", "uid": "7f3a1c00-0000-4000-8000-000000000000"}
READ_BY_KUBECTL = "configmaps,secrets,services,networkpolicies,statefulsets,jobs,rayclusters"


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


@pytest.mark.parametrize(
    "request_",
    [
        ("delete", "secret", "of-a-tenant"),
        ("delete", "configmap", "of-a-tenant"),
        ("patch", "configmap", "of-a-tenant", '--patch={"data": {"answer": "changed"}}'),
        ("label", "configmap", "of-a-tenant", "app.kubernetes.io/managed-by=rljob-operator"),
        ("delete", "configmap", "of-another-group"),
        ("delete", "configmap", "of-another-kind"),
        ("delete", "service", "of-a-tenant"),
        ("delete", "networkpolicy", "of-a-tenant"),
        ("delete", "statefulset", "of-a-tenant"),
        ("delete", "job", "of-a-tenant"),
        ("delete", "raycluster", "of-a-tenant"),
    ],
    ids=" ".join,
)
def test_the_operator_neither_changes_nor_deletes_what_belongs_to_no_job(
    kubectl: Kubectl, as_operator: Kubectl, namespace: str, request_: tuple[str, ...]
) -> None:
    let_kubectl_read(kubectl, namespace)
    kubectl("apply", "-f", "-", "-n", namespace, given=yaml.safe_dump_all(of_a_tenant()))
    refusal = f"{request_[2]} belongs to no RLJob"
    # The API server takes some time to load a new policy.
    eventually(
        lambda: refused(as_operator, "-n", namespace, *request_, "--dry-run=server"), lambda text: refusal in text
    )
    said = refused(as_operator, "-n", namespace, *request_)
    policy = f"{namespace}-operator-own"
    assert f"forbidden: ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {refusal}" in said
    assert request_[2] in kubectl.names(request_[1], "-n", namespace)


@pytest.mark.parametrize("has_owner", [False, True])
def test_the_operator_may_delete_what_has_its_label_or_a_job_as_owner(
    kubectl: Kubectl, as_operator: Kubectl, namespace: str, new_job: Callable, has_owner: bool
) -> None:
    let_kubectl_read(kubectl, namespace)
    kubectl("create", "configmap", "of-a-tenant", "-n", namespace)
    deletion = ("delete", "configmap", "of-a-tenant", "-n", namespace, "--dry-run=server")
    eventually(lambda: refused(as_operator, *deletion), lambda text: "belongs to no RLJob" in text)
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": "sums", "uid": new_job().raw()["metadata"]["uid"]}
    sign: Manifest = {"ownerReferences": [owner]} if has_owner else {"labels": MANAGED_BY}
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own", **sign}}
    kubectl("create", "-f", "-", "-n", namespace, given=json.dumps(own))
    as_operator("delete", "configmap", "own", "-n", namespace)
    assert "own" not in kubectl.names("configmap", "-n", namespace)


def let_kubectl_read(kubectl: Kubectl, namespace: str) -> None:
    """Give the operator's account the right to get objects, without which kubectl changes none."""
    kubectl("create", "role", "reads", "--verb=get,list,watch", f"--resource={READ_BY_KUBECTL}", "-n", namespace)
    account = f"--serviceaccount={namespace}:{namespace}-operator"
    kubectl("create", "rolebinding", "reads", "--role=reads", account, "-n", namespace)


def of_a_tenant() -> list[Manifest]:
    """Return objects that belong to no job, one of each kind that the operator may delete; some have other owners."""
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    selected = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
    never = {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}}
    group = {"rayStartParams": {}, "template": pod}
    kinds: list[tuple[str, str, Manifest]] = [
        ("v1", "ConfigMap", {"data": {"answer": "42"}}),
        ("v1", "Secret", {}),
        ("v1", "Service", {"spec": {"clusterIP": "None"}}),
        ("networking.k8s.io/v1", "NetworkPolicy", {"spec": {"podSelector": {}}}),
        ("apps/v1", "StatefulSet", {"spec": {**selected, "replicas": 0, "serviceName": "a"}}),
        ("batch/v1", "Job", {"spec": {"template": never, "suspend": True}}),
        ("ray.io/v1", "RayCluster", {"spec": {"headGroupSpec": group, "suspend": True}}),
    ]
    found = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": "of-a-tenant"}, **content}
        for version, kind, content in kinds
    ]
    owners = {"of-another-group": ("example.com/v1", KIND), "of-another-kind": (API_VERSION, "Other")}
    for name, (version, kind) in owners.items():
        owner = {**OWNER, "apiVersion": version, "kind": kind}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner]}})
    return found


def refused(as_operator: Kubectl, *request: str) -> str:
    """Return why the API server refuses a request; empty: it does not."""
    try:
        as_operator(*request)
    except ClusterError as error:
        return str(error)
    return ""


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
