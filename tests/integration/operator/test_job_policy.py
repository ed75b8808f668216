"""What the chart's policy lets jobs ask for, judged by a real API server."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from local_cluster.errors import ClusterError
from local_cluster.fixtures import temporary_namespace
from local_cluster.kubectl import Kubectl, Manifest
from support.operator.helm_release import rendered
from support.operator.operator_world import raw_job
from support.waiting import eventually

LIMITS = {
    "enabled": True,
    "priorityClasses": ["batch"],
    "tokenAudiences": ["sts.example.com"],
    "images": ["registry.example.com/rl/", "registry.example.com/tools/"],
    "tolerations": ["nvidia.com/gpu"],
    "nodeSelectors": {"pool": ["rl", "rl-big"], "topology.kubernetes.io/zone": []},
}


def token(audience: str | None) -> dict[str, Any]:
    source = {"path": "token", **({"audience": audience} if audience else {})}
    return {"name": "token", "projected": {"sources": [{"serviceAccountToken": source}]}}


def template(**spec: Any) -> dict[str, Any]:
    return {"pods": {"trainer": {"template": {"spec": spec}}}}


def container(**fields: Any) -> dict[str, Any]:
    return {"name": "side", "image": "registry.example.com/tools/side:1", **fields}


def node_affinity(*expressions: dict[str, Any], **more: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": list(expressions), **more}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


HOST = {"name": "data", "hostPath": {"path": "/"}}
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "runs"}}
ALLOWED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "what the lists name": {
        "runtime": {"image": "registry.example.com/rl/trainer:2", "volumes": [CLAIM, token("sts.example.com")]},
        "scheduling": {
            "priorityClassName": "batch",
            "nodeSelector": {"pool": "rl-big", "topology.kubernetes.io/zone": "any"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    },
    "what the lists name, in a template": template(
        containers=[container(ports=[{"containerPort": 80}])],
        volumes=[CLAIM, {"name": "weights", "image": {"reference": "registry.example.com/rl/weights:1"}}],
        tolerations=[{"key": "nvidia.com/gpu"}],
        affinity=node_affinity({"key": "pool", "operator": "In", "values": ["rl"]}),
        priorityClassName="batch",
    ),
    "null, which removes a field": template(volumes=None, tolerations=None, priorityClassName=None, nodeSelector=None),
    "roles without a template": {"pods": {"head": {"labels": {"a": "b"}}, "trainer": {"hostNetwork": False}}},
}
DENIED: dict[str, tuple[dict[str, Any], str]] = {
    "hostPath": ({"runtime": {"volumes": [CLAIM, HOST]}}, "volume data is a hostPath"),
    "hostPath in a template": (template(volumes=[HOST]), "volume data is a hostPath"),
    "host network": ({"pods": {"rollout": {"hostNetwork": True}}}, "hostNetwork, hostPID, hostIPC and hostPort"),
    "host network in a template": (template(hostNetwork=True), "hostNetwork, hostPID"),
    "processes of the node": (template(hostPID=True), "hostNetwork, hostPID"),
    "memory of the node": (template(hostIPC=True), "hostNetwork, hostPID"),
    "a port of the node": (template(initContainers=[container(ports=[{"hostPort": 80}])]), "hostPort"),
    "a priority": ({"scheduling": {"priorityClassName": "system-node-critical"}}, "allows to jobs: batch"),
    "a priority in a template": (template(priorityClassName="system-node-critical"), "allows to jobs: batch"),
    "a number as priority": (template(priority=2_000_000_000), "allows to jobs: batch"),
    "a token of another audience": ({"runtime": {"volumes": [token("vault")]}}, "allowed: sts.example.com"),
    "a token for the API server": (template(volumes=[token(None)]), "allowed: sts.example.com"),
    "an account": (template(serviceAccountName="admin"), "serviceAccountName and automount"),
    "an account by its old name": (template(serviceAccount="admin"), "serviceAccountName and automount"),
    "the token of the account": (template(automountServiceAccountToken=True), "serviceAccountName and automount"),
    "an image": (
        {"runtime": {"image": "docker.io/x/miner"}},
        "spec.runtime.image docker.io/x/miner is not allowed by the policy of this cluster; images must begin with "
        "registry.example.com/rl/ or registry.example.com/tools/",
    ),
    "an image of a side container": (template(containers=[container(image="miner")]), "an image of a container"),
    "an image of an init container": (template(initContainers=[container(image="miner")]), "an image of a container"),
    "an image as a volume": (template(volumes=[{"name": "v", "image": {"reference": "x"}}]), "an image of a container"),
    "a toleration": ({"scheduling": {"tolerations": [{"key": "control-plane"}]}}, "allowed: nvidia.com/gpu"),
    "a toleration of a role": ({"pods": {"head": {"tolerations": [{"key": "x"}]}}}, "allowed: nvidia.com/gpu"),
    "a toleration of everything": (template(tolerations=[{"operator": "Exists"}]), "allowed: nvidia.com/gpu"),
    "a label of nodes": ({"scheduling": {"nodeSelector": {"team": "b"}}}, "labels: pool, topology"),
    "a value of a label": ({"pods": {"head": {"nodeSelector": {"pool": "b"}}}}, "labels: pool, topology"),
    "a label in a template": (template(nodeSelector={"team": "b"}), "labels: pool, topology"),
    "a node": (template(nodeName="control-plane-0"), "labels: pool, topology"),
    "an affinity to nodes": (
        {"pods": {"head": {"affinity": node_affinity({"key": "pool", "operator": "NotIn", "values": ["rl"]})}}},
        "labels: pool, topology",
    ),
    "an affinity to a value": (
        template(affinity=node_affinity({"key": "pool", "operator": "In", "values": ["rl", "b"]})),
        "labels: pool, topology",
    ),
    "an affinity to a name": (
        template(affinity=node_affinity(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n"]}])),
        "labels: pool, topology",
    ),
}


def job(namespace: str, sections: dict[str, Any], name: str = "tried") -> Manifest:
    raw = raw_job(name, **copy.deepcopy(sections))
    return {**raw, "metadata": {"name": name, "namespace": namespace}}


class Judge:
    """The API server, which is asked and keeps nothing."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace = kubectl, namespace

    def said(self, sections: dict[str, Any]) -> str:
        """Return why it refuses a job with these sections; empty: it takes it."""
        try:
            self.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(job(self.namespace, sections)))
        except ClusterError as error:
            return " ".join(str(error).split())
        return ""


@pytest.fixture(scope="module")
def judge(kubectl: Kubectl) -> Iterator[Judge]:
    """Of a namespace with the policy; the job `before` is older than the policy."""
    with temporary_namespace(kubectl) as namespace:
        kubectl.apply(job(namespace, {"pods": {"rollout": {"hostNetwork": True}}}, "before"))
        there = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
        found = rendered("--set-json", f"jobPolicy={json.dumps(LIMITS | there)}", release=namespace)
        policies = [each for each in found.values() if is_of_jobs(each)]
        assert len(policies) == 2
        kubectl.apply(*policies)
        judged = Judge(kubectl, namespace)
        refused = DENIED["hostPath"][0]
        eventually(lambda: judged.said(refused), bool)
        yield judged
        for each in policies:
            kubectl("delete", each["kind"], each["metadata"]["name"])


def test_jobs_that_stay_within_the_lists_are_taken(judge: Judge) -> None:
    assert {name: judge.said(sections) for name, sections in ALLOWED.items()} == dict.fromkeys(ALLOWED, "")


def test_jobs_that_leave_them_are_refused_with_what_is_allowed(judge: Judge) -> None:
    said = {name: judge.said(sections) for name, (sections, _) in DENIED.items()}
    assert {name: text for name, text in said.items() if DENIED[name][1] not in text} == {}


def test_a_job_that_is_older_than_the_policy_can_be_suspended_and_gets_no_other_pods(judge: Judge) -> None:
    kubectl, inside = judge.kubectl, ("-n", judge.namespace)
    kubectl("patch", "rljob", "before", *inside, "--type=merge", '-p={"spec":{"suspend":true}}')
    with pytest.raises(ClusterError, match="hostNetwork"):
        kubectl(
            "patch", "rljob", "before", *inside, "--type=merge", '-p={"spec":{"pods":{"head":{"labels":{"a":"b"}}}}}'
        )


def test_the_server_finds_no_mistake_in_the_types_of_the_policy(judge: Judge) -> None:
    (policy,) = (
        each
        for each in judge.kubectl.get("validatingadmissionpolicies")["items"]
        if each["metadata"]["name"].startswith(judge.namespace)
    )
    assert policy["status"].get("typeChecking", {}).get("expressionWarnings", []) == []


def test_without_lists_images_tolerations_and_nodes_are_free() -> None:
    found = rendered("--set=jobPolicy.enabled=true")
    policy, _ = (each for each in found.values() if is_of_jobs(each))
    text = json.dumps(policy["spec"])
    assert "hostPath" in text
    assert not any(word in text for word in ("allowedImages", "allowedNodes", "toleration"))
    assert not [each for each in rendered().values() if is_of_jobs(each)]


def is_of_jobs(each: Manifest) -> bool:
    """Return whether an object is the policy of jobs or its binding; the operator has a policy of its own."""
    is_policy: bool = each["kind"].startswith("ValidatingAdmissionPolicy") and each["metadata"]["name"].endswith(
        "-jobs"
    )
    return is_policy
