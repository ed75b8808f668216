"""Who reaches the pods of a job: its NetworkPolicy, its Secret, and the token of Ray."""

from dataclasses import replace

import pytest

from rljob_api.control import TOKEN_VARIABLE, eviction_token, ray_token
from rljob_api.tool_protocol import digest, tools_token
from rljob_operator.children import children
from rljob_operator.job.pods import secret_of_ray
from support.operator.operator_world import DEFAULTS, admitted, cluster_of, pods, raw_job

OF_JOB = {"matchLabels": {"rljob.dev/job": "sums"}}
OTHERS = {**OF_JOB, "matchExpressions": [{"key": "rljob.dev/tools", "operator": "DoesNotExist"}]}
TOOLS = {**OF_JOB, "matchExpressions": [{"key": "rljob.dev/tools", "operator": "Exists"}]}


def test_only_the_job_s_pods_and_the_operator_reach_a_job_s_pods():
    job = admitted(raw_job(), replace(DEFAULTS, operator_namespace="rljob"))
    mine = OTHERS
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "rljob-operator"}},
    }
    assert children.network_policy(job)["spec"] == {
        "podSelector": mine,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": mine}]},
            {
                "from": [operator],
                "ports": [{"port": 8265, "protocol": "TCP"}, {"port": 8643, "protocol": "TCP"}],
            },
        ],
    }


def test_egress_is_limited_to_the_job_dns_and_what_the_operator_allows():
    rules = ({"ports": [{"port": 443}]},)
    spec = children.network_policy(admitted(raw_job(), replace(DEFAULTS, egress=rules)))["spec"]
    dns = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == [
        {"to": [{"podSelector": OTHERS}]},
        {"to": [{"podSelector": TOOLS}], "ports": [{"port": 8645, "protocol": "TCP"}]},
        {
            "to": [{"namespaceSelector": dns}],
            "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        },
        *rules,
    ]


def test_the_driver_gets_the_control_token_from_the_job_s_secret():
    job = admitted(raw_job())
    secret = children.secret(job, "a token")
    (head,) = cluster_of(job)["headGroupSpec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "token"}}
    assert {"name": TOKEN_VARIABLE, "valueFrom": reference} in head["env"]
    tokens = {
        "token": "a token",
        "evictionToken": eviction_token("a token"),
        "rayToken": ray_token("a token"),
        "toolsTokenDigest": digest(tools_token("a token")),
    }
    assert (secret["stringData"], secret["immutable"]) == (tokens, True)
    assert children.decoded("YSB0b2tlbg==") == "a token"


RAY_TOKEN = {"secretKeyRef": {"name": "sums-7f3a1", "key": "rayToken"}}


@pytest.mark.parametrize("pod", pods())
def test_ray_in_every_pod_takes_requests_with_the_token_only(pod: dict):
    environment = pod["containers"][0]["env"]
    assert {"name": "RAY_AUTH_MODE", "value": "token"} in environment
    assert {"name": "RAY_AUTH_TOKEN", "valueFrom": RAY_TOKEN} in environment
    assert secret_of_ray({"spec": pod}) == "sums-7f3a1"


def test_a_job_can_switch_ray_s_authentication_off():
    environments = [pod["containers"][0]["env"] for pod in pods(runtime={"env": {"RAY_AUTH_MODE": "disabled"}})]
    assert all({"name": "RAY_AUTH_MODE", "value": "disabled"} in environment for environment in environments)
    assert "RAY_AUTH_TOKEN" not in str(environments)
    assert secret_of_ray({"spec": pods(runtime={"env": {"RAY_AUTH_MODE": "disabled"}})[0]}) is None


def test_the_secret_s_name_has_the_id_of_the_key():
    job = admitted(raw_job())
    assert children.secret(job, "a token", "0d4c5b6a")["metadata"]["name"] == "sums-7f3a1-0d4c5b6a"
    group = cluster_of(job, "0d4c5b6a")
    for template in (group["headGroupSpec"]["template"], *(each["template"] for each in group["workerGroupSpecs"])):
        sources = [each.get("valueFrom") or {} for each in template["spec"]["containers"][0]["env"]]
        names = {each["secretKeyRef"]["name"] for each in sources if "secretKeyRef" in each}
        assert names == {"sums-7f3a1-0d4c5b6a"}


def test_ray_s_token_opens_nothing_else():
    assert len({"a token", eviction_token("a token"), ray_token("a token")}) == 3


def test_no_pod_but_the_head_has_the_token():
    workers = cluster_of(admitted(raw_job()))["workerGroupSpecs"]
    environments = [group["template"]["spec"]["containers"][0]["env"] for group in workers]
    secrets = [each["valueFrom"]["secretKeyRef"] for env in environments for each in env if "valueFrom" in each]
    # A Secret of an older operator has no eviction token; its pods start without.
    eviction = {"name": "sums-7f3a1", "key": "evictionToken", "optional": True}
    assert secrets == [RAY_TOKEN["secretKeyRef"], eviction] * 2
    assert TOKEN_VARIABLE not in str(workers)
