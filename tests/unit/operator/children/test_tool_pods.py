"""The pods in which a job's tools run: what they have, what they lack, and when they come and go."""

from dataclasses import replace

import pytest

from rljob_api.sections import Tools
from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.tool_protocol import digest, host, tools_token
from rljob_operator.capacity.demand import demand, total
from rljob_operator.children import children, tool_pods
from rljob_operator.identity import ClusterRef
from rljob_operator.world.pod_stage import PodStage, Stage
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, admitted, raw_job

CLUSTER = "sums-7f3a1-1"
BUILT = ClusterRef(CLUSTER)
TOOLS = {"functions": ["python"], "concurrency": 3}


def job(tools=TOOLS, **sections):
    return admitted(raw_job(rollout={"tools": tools}, **sections), replace(DEFAULTS, operator_namespace="rljob"))


def pod(**sections):
    return tool_pods.template(job(**sections), BUILT)["spec"]


def test_a_pod_of_tools_has_nothing_of_the_job():
    found = pod(
        runtime={
            "image": "trainer:1",
            "env": {"HF_HOME": "/cache", "PYTHONPATH": "/code"},
            "volumes": [{"name": "data", "emptyDir": {}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
    )
    (container,) = found["containers"]
    assert found["automountServiceAccountToken"] is False
    assert found["volumes"] == [{"name": "rljob-tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "128Mi"}}]
    assert container["volumeMounts"] == [{"name": "rljob-tmp", "mountPath": "/tmp"}]
    secret = {"secretKeyRef": {"name": "sums-7f3a1", "key": "toolsTokenDigest"}}
    assert container["env"] == [
        {"name": "RLJOB_TOOLS_TOKEN_DIGEST", "valueFrom": secret},
        {"name": "HOME", "value": "/"},
        {"name": "PYTHONNOUSERSITE", "value": "1"},
        {"name": "PYTHONPATH", "value": "/code"},
    ]
    assert "shareProcessNamespace" not in found
    assert container["command"] == ["python", "-m", "rljob_trainer.conversations.pod_server"]
    assert container["workingDir"] == "/", "Python imports from there first, and /tmp has files of hostile code"


def test_a_pod_of_tools_has_no_rights():
    found = pod()
    security = found["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 10002)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_its_token_is_not_that_of_the_control_protocol():
    stored = children.secret(job(), "a token")["stringData"]
    assert stored["toolsTokenDigest"] == digest(tools_token("a token"))
    assert tools_token("a token") not in stored.values(), "whoever reads the pods' key cannot call them"


def test_only_the_job_s_other_pods_reach_it_and_it_reaches_nothing():
    policy = tool_pods.network_policy(job())["spec"]
    mine = {"matchLabels": {"rljob.dev/job": "sums"}}
    others = {**mine, "matchExpressions": [{"key": "rljob.dev/tools", "operator": "DoesNotExist"}]}
    assert policy == {
        "podSelector": {**mine, "matchExpressions": [{"key": "rljob.dev/tools", "operator": "Exists"}]},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": others}], "ports": [{"port": 8645, "protocol": "TCP"}]}],
        "egress": [],
    }
    assert children.network_policy(job())["spec"]["ingress"][0] == {"from": [{"podSelector": others}]}


def test_labels_are_those_that_the_policies_and_the_service_select():
    labels = tool_pods.template(job(), BUILT)["metadata"]["labels"]
    assert (labels["rljob.dev/job"], labels["rljob.dev/tools"]) == ("sums", CLUSTER)
    assert tool_pods.service(job(), CLUSTER)["spec"]["selector"] == {"rljob.dev/tools": CLUSTER}
    assert tool_pods.statefulset(job(), BUILT)["spec"]["selector"] == {"matchLabels": {"rljob.dev/tools": CLUSTER}}


def test_the_driver_finds_each_pod_by_its_name():
    found = tool_pods.statefulset(job(), BUILT)
    line = children.entrypoint(job(), CLUSTER, 2, {})
    assert "exec env RLJOB_TOOL_PODS=sums-7f3a1-1-tools.sums-7f3a1-tools python -m" in line
    name, service = found["metadata"]["name"], found["spec"]["serviceName"]
    assert tool_pods.service(job(), CLUSTER)["metadata"]["name"] == service
    assert host("sums-7f3a1-1-tools.sums-7f3a1-tools", 2) == f"{name}-2.{service}"


def test_the_longest_name_leaves_room_for_what_kubernetes_appends():
    long = admitted(raw_job(name="a" * 40, rollout={"tools": TOOLS}))
    name = tool_pods.pods_name(long, f"{'a' * 40}-7f3a1-12345")
    assert len(name) <= 63 - len("-5d4f8c7b9d"), "of the label controller-revision-hash"
    assert name.endswith("-7f3a1-12345-tools")


@pytest.mark.parametrize(
    ("tools", "pods"),
    [
        ({}, 3),
        ({"sandbox": "Pods"}, 3),
        ({"sandbox": "Namespaces"}, 0),
        ({"sandbox": "None"}, 0),
        ({"functions": ["calculator"]}, 0),
        ({"functions": ["calculator", "my_tools:search"]}, 3),
    ],
)
def test_pods_are_made_for_code_that_has_to_be_kept_apart(tools, pods):
    found = job({**TOOLS, **tools})
    assert num_tool_pods(found.spec) == pods
    kinds = [child["kind"] for child in tool_pods.tool_children(found, BUILT)]
    assert kinds == (["NetworkPolicy", "Service", "StatefulSet"] if pods else [])
    assert ("RLJOB_TOOL_PODS" in children.entrypoint(found, CLUSTER, 1, {})) == bool(pods)


def test_a_job_without_engines_has_no_pods_for_tools():
    assert num_tool_pods(admitted(raw_job()).spec) == 0


def test_they_count_in_what_the_job_demands():
    pods = demand(job())
    assert (pods[-1].group, pods[-1].count) == ("tools", 3)
    assert pods[-1].requests["cpu"] == 100, "KubeRay adds no init container to them"
    assert pods[-1].limits == {"cpu": 1000, "memory": (1024 + 128 + 256) * 1000 << 20}
    assert total(pods)["pods"] == total(demand(admitted(raw_job())))["pods"] + 3000


def test_a_role_names_their_runtime_class_and_resources():
    role = {"runtimeClassName": "gvisor", "resources": {"limits": {"memory": "2000Mi"}}, "nodeSelector": {"a": "b"}}
    found = pod(pods={"tools": role})
    assert found["runtimeClassName"] == "gvisor"
    assert found["nodeSelector"] == {"a": "b"}
    assert found["containers"][0]["resources"] == {"limits": {"memory": "2000Mi"}}
    assert "affinity" in found, "it prefers nodes without GPUs"


def test_an_own_spread_counts_them_alone():
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    (constraint,) = pod(pods={"tools": {"topologySpreadConstraints": [spread]}})["topologySpreadConstraints"]
    assert constraint["labelSelector"] == {"matchLabels": {"rljob.dev/tools": CLUSTER}}


def test_one_domain_of_workers_does_not_hold_them():
    assert "podAffinity" not in str(pod(pods={"sameDomain": "rack"}))


def written(wanted):
    """Return what the API server makes of a StatefulSet: quantities in its own words, and defaults."""
    text = {**wanted["spec"], "revisionHistoryLimit": 10, "template": {"spec": {"dnsPolicy": "ClusterFirst"}}}
    return {**wanted, "spec": text}


def test_a_statefulset_is_current_until_its_spec_or_its_size_changes():
    wanted = tool_pods.statefulset(job(), BUILT)
    assert children.is_as_wanted(written(wanted), wanted)
    other = tool_pods.statefulset(job({**TOOLS, "memoryMib": 2048}), BUILT)
    assert not children.is_as_wanted(written(wanted), other)
    scaled = written(wanted)
    assert not children.is_as_wanted({**scaled, "spec": {**scaled["spec"], "replicas": 1}}, wanted)
    bare = {**scaled["metadata"], "ownerReferences": []}
    assert not children.is_as_wanted({**scaled, "metadata": bare}, wanted)
    unlabelled = {**scaled["metadata"], "labels": {}}
    assert not children.is_as_wanted({**scaled, "metadata": unlabelled}, wanted)


def test_tools_without_settings_have_the_memory_of_a_call_and_more():
    assert tool_pods.resources(Tools(functions=("python",), memory_mib=64))["limits"]["memory"] == "448Mi"


def test_egress_of_the_job_includes_its_tools():
    limited = admitted(raw_job(rollout={"tools": TOOLS}), replace(DEFAULTS, egress=()))
    rules = children.network_policy(limited)["spec"]["egress"]
    tools = {"to": [{"podSelector": tool_pods.pods_selector(limited)}], "ports": [{"port": 8645, "protocol": "TCP"}]}
    assert tools in rules


def with_tools(**sections) -> Surroundings:
    return Surroundings(raw=raw_job(rollout={"tools": TOOLS}, **sections))


def kinds(surroundings: Surroundings) -> list[str]:
    return [child["kind"] for child in surroundings.observed.children]


def sets(surroundings: Surroundings) -> list[str]:
    """Return the StatefulSets that nobody deletes."""
    found = [child["metadata"] for child in surroundings.observed.children if child["kind"] == "StatefulSet"]
    return [metadata["name"] for metadata in found if "deletionTimestamp" not in metadata]


def test_a_driver_starts_when_the_pods_of_its_tools_are_ready():
    job = with_tools()
    job.step()
    job.pods_ready()
    job.tool_pods_ready(ready=False)
    job.step()
    job.ray_answers()
    assert job.step().orders.submit is None
    assert job.condition("ClusterReady")["message"].startswith("3 of 6 pods are ready")
    job.tool_pods_ready()
    of_another = tuple(replace(pod, tools_of="sums-7f3a1-9") for pod in job.observed.tool_pods)
    job.observed, ready = replace(job.observed, tool_pods=of_another), job.observed
    assert job.plan().orders.submit is None
    job.observed = ready
    assert "RLJOB_TOOL_PODS=" in str(job.step().orders.submit)
    assert job.condition("ClusterReady")["message"] == "6 of 6 pods are ready"


def test_what_a_pod_of_tools_waits_for_is_what_the_job_waits_for():
    job = with_tools()
    job.step()
    job.pods_ready()
    job.tool_pods_ready(ready=False)
    first, *others = job.observed.tool_pods
    stuck = replace(first, stage=PodStage(Stage.IMAGE, NOW, "cannot pull it"))
    job.observed = replace(job.observed, tool_pods=(stuck, *others))
    found = job.plan().waiting
    assert found is not None
    assert (found.blocker, found.text.partition(":")[0]) == (Stage.IMAGE, "sums-7f3a1-1-tools-0")


def test_pods_of_tools_that_nobody_makes_are_named():
    job = with_tools()
    job.step()
    job.pods_ready()
    job.now += 30
    found = job.plan().waiting
    assert found is not None
    assert (found.blocker, found.text[:37]) == ("ToolPods", "3 of 3 pods for tools do not exist; `")


def test_they_go_with_the_raycluster_that_they_belong_to():
    job = with_tools()
    job.step()
    job.tool_pods_ready()
    job.to_running()
    assert sets(job) == ["sums-7f3a1-1-tools"]
    assert job.plan().is_empty
    job.ends(0)
    job.step()
    job.deletions_done()
    assert sets(job) == []
    job.step()
    job.deletions_done()
    assert kinds(job) == []


def test_policies_outlast_the_pods_of_tools():
    job = with_tools()
    job.step()
    job.tool_pods_ready()
    job.to_running()
    left = job.observed.tool_pods
    job.ends(0)
    job.step()
    job.deletions_done()
    job.observed = replace(job.observed, tool_pods=left)
    job.step()
    job.deletions_done()
    assert kinds(job).count("NetworkPolicy") == 2
    job.observed = replace(job.observed, tool_pods=())
    todo = job.step()
    assert [target.kind for target in todo.delete].count("Secret") == 2


def test_a_suspended_job_has_no_pods_for_tools():
    job = with_tools(scheduling={"suspend": True})
    job.step()
    assert sets(job) == []


def test_a_new_raycluster_gets_new_pods_for_tools():
    job = with_tools()
    job.step()
    job.tool_pods_ready()
    job.to_running()
    job.edit(rollout={"tools": {**TOOLS, "memoryMib": 2048}})
    job.step()
    assert sets(job) == ["sums-7f3a1-1-tools"], "the running attempt keeps its own"
    job.ends(7)
    for _ in range(4):
        job.now += 60
        job.step()
        job.deletions_done()
    assert sets(job) == ["sums-7f3a1-2-tools"]
