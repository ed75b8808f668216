"""Pods for tools that agent-sandbox makes: what their Sandboxes are, who has them, and when they come and go."""

import json
from dataclasses import replace

import pytest

from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.status import ToolPodOwner
from rljob_api.tool_protocol import host
from rljob_operator.cache.cache import Cache
from rljob_operator.capacity.demand import demand
from rljob_operator.children import children, tool_pods
from rljob_operator.cluster.cluster import CHILDREN, LABELLED, OF_AGENT_SANDBOX, path
from rljob_operator.identity import ClusterRef
from rljob_operator.world.pod_stage import PodStage, Stage
from rljob_operator.world.world import Defaults
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, admitted, raw_job

CLUSTER = "sums-7f3a1-1"
BUILT = ClusterRef(CLUSTER)
TOOLS = {"functions": ["python"], "concurrency": 3}
WITH_SANDBOXES = replace(DEFAULTS, tool_pod_owner=ToolPodOwner.SANDBOX)
NAMES = [f"{CLUSTER}-tools-{i}" for i in range(3)]


def job(tools=TOOLS, defaults=WITH_SANDBOXES, **sections):
    return admitted(raw_job(rollout={"tools": tools}, **sections), defaults)


def around_job(defaults: Defaults = WITH_SANDBOXES) -> Surroundings:
    around = Surroundings(raw=raw_job(rollout={"tools": TOOLS}))
    around.defaults = defaults
    return around


def there(around: Surroundings, kind: str = "Sandbox") -> list[str]:
    """Return the names of the objects of a kind that are not being deleted."""
    found = [child["metadata"] for child in around.observed.children if child["kind"] == kind]
    return sorted(metadata["name"] for metadata in found if "deletionTimestamp" not in metadata)


def training() -> Surroundings:
    around = around_job()
    around.step()
    around.tool_pods_ready()
    return around.to_running()


# What they are.


def test_a_sandbox_has_one_pod_of_the_template_that_a_statefulset_has():
    first, *_ = tool_pods.sandboxes(job(), BUILT)
    own = {"hostname": NAMES[0], "subdomain": "sums-7f3a1-tools"}
    template = tool_pods.template(job(), BUILT)
    assert first["spec"] == {"podTemplate": {**template, "spec": {**template["spec"], **own}}}
    assert first["apiVersion"] == "agents.x-k8s.io/v1beta1"


def test_sandboxes_have_the_labels_and_the_owner_of_a_statefulset():
    first, *_ = tool_pods.sandboxes(job(), BUILT)
    like = tool_pods.statefulset(job(), BUILT)["metadata"]
    assert first["metadata"]["labels"] == like["labels"]
    assert first["metadata"]["ownerReferences"] == like["ownerReferences"]


def test_the_driver_finds_the_pod_of_each_sandbox_in_the_service():
    line = children.entrypoint(job(), CLUSTER, 2, {})
    assert f"exec env RLJOB_TOOL_PODS={CLUSTER}-tools.sums-7f3a1-tools python -m" in line
    pods = [each["spec"]["podTemplate"]["spec"] for each in tool_pods.sandboxes(job(), BUILT)]
    reached = [f"{pod['hostname']}.{pod['subdomain']}" for pod in pods]
    assert reached == [host(f"{CLUSTER}-tools.sums-7f3a1-tools", i) for i in range(3)]
    assert [each["metadata"]["name"] for each in tool_pods.sandboxes(job(), BUILT)] == NAMES
    labels = tool_pods.sandboxes(job(), BUILT)[0]["spec"]["podTemplate"]["metadata"]["labels"]
    assert tool_pods.service(job(), CLUSTER)["spec"]["selector"].items() <= labels.items()


def test_the_longest_name_of_a_pod_is_a_host_name():
    long = admitted(raw_job(name="a" * 40, rollout={"tools": {**TOOLS, "concurrency": 100}}), WITH_SANDBOXES)
    names = [each["metadata"]["name"] for each in tool_pods.sandboxes(long, ClusterRef(f"{'a' * 40}-7f3a1-12345"))]
    assert max(map(len, names)) <= 63


def test_manifests_are_plain_values():
    assert all(type(each["kind"]) is str for each in tool_pods.tool_children(job(), BUILT))


def test_a_patch_of_the_template_cannot_take_the_name_away():
    patched = job(pods={"tools": {"template": {"spec": {"hostname": "mine", "subdomain": "other"}}}})
    pod = tool_pods.sandboxes(patched, BUILT)[1]["spec"]["podTemplate"]["spec"]
    assert (pod["hostname"], pod["subdomain"]) == (NAMES[1], "sums-7f3a1-tools")


def test_the_policies_and_the_service_are_those_of_a_statefulset():
    set_of_pods = tool_pods.tool_children(job(defaults=DEFAULTS), BUILT)
    assert tool_pods.tool_children(job(), BUILT)[:2] == set_of_pods[:2]
    assert [each["kind"] for each in set_of_pods[2:]] == ["StatefulSet"]
    assert [each["kind"] for each in tool_pods.tool_children(job(), BUILT)[2:]] == ["Sandbox"] * 3


def test_they_demand_what_the_pods_of_a_statefulset_do():
    sections = {"pods": {"tools": {"nodeSelector": {"a": "b"}, "resources": {"requests": {"cpu": "2"}}}}}
    assert demand(job(**sections)) == demand(job(defaults=DEFAULTS, **sections))
    assert (demand(job())[-1].group, demand(job())[-1].count) == ("tools", 3)


def test_a_sandbox_is_current_until_its_template_changes():
    wanted, *_ = tool_pods.sandboxes(job(), BUILT)
    seen = read_again(wanted)
    assert children.is_as_wanted(seen, wanted)
    other, *_ = tool_pods.sandboxes(job({**TOOLS, "memoryMib": 2048}), BUILT)
    assert not children.is_as_wanted(seen, other)
    assert not children.is_as_wanted({**seen, "metadata": {**seen["metadata"], "labels": {}}}, wanted)
    assert not children.is_as_wanted({**seen, "metadata": {**seen["metadata"], "ownerReferences": []}}, wanted)


def read_again(wanted):
    """Return what the operator keeps of an object that the API server has completed."""
    metadata = {**wanted["metadata"], "uid": "1", "resourceVersion": "7"}
    status = {"conditions": [{"type": "Ready", "status": "False"}]}
    cache = Cache()
    cache.put({**wanted, "metadata": metadata, "spec": {**wanted["spec"], "replicas": 1}, "status": status})
    (found,) = cache.children(Surroundings().job)
    return found


def test_of_a_sandbox_only_the_metadata_is_kept():
    wanted, *_ = tool_pods.sandboxes(job(), BUILT)
    assert set(read_again(wanted)) == {"apiVersion", "kind", "metadata"}
    assert len(json.dumps(read_again(wanted))) < len(json.dumps(wanted)) / 2


def test_sandboxes_of_others_are_not_watched():
    assert OF_AGENT_SANDBOX == ("Sandbox",)
    assert "Sandbox" not in CHILDREN
    assert path("Sandbox", "ml") == "apis/agents.x-k8s.io/v1beta1/namespaces/ml/sandboxes"
    assert "Sandbox" in LABELLED


# Which jobs have them.


@pytest.mark.parametrize(("tools", "owner"), [({}, "Sandbox"), ({"functions": ["calculator"]}, None)])
def test_what_makes_the_pods_is_recorded_for_jobs_that_have_some(tools, owner):
    found = job({**TOOLS, **tools})
    assert found.resolved.tool_pod_owner == owner
    assert (num_tool_pods(found.spec) > 0) == (owner is not None)


def test_a_job_of_an_operator_without_the_setting_has_a_statefulset():
    around = around_job(DEFAULTS)
    around.step()
    assert around.status["resolved"]["toolPodOwner"] == "StatefulSet"
    assert (there(around), there(around, "StatefulSet")) == ([], [f"{CLUSTER}-tools"])


@pytest.mark.parametrize(
    ("before", "after", "kind", "names"),
    [
        (DEFAULTS, WITH_SANDBOXES, "StatefulSet", ["tools"]),
        (WITH_SANDBOXES, DEFAULTS, "Sandbox", ["tools-0", "tools-1", "tools-2"]),
    ],
)
def test_a_job_keeps_what_it_began_with(before, after, kind, names):
    around = around_job(before)
    around.step()
    around.tool_pods_ready()
    around.to_running()
    around.defaults = after
    assert around.plan().is_empty
    around.ends(7)
    around.edit(rollout={"tools": {**TOOLS, "memoryMib": 2048}})
    for _ in range(4):
        around.now += 60
        around.step()
        around.deletions_done()
    assert there(around, kind) == [f"sums-7f3a1-2-{name}" for name in names]
    (other,) = {"StatefulSet", "Sandbox"} - {kind}
    assert there(around, other) == []


def test_a_job_that_an_older_operator_began_keeps_its_statefulset():
    around = around_job(DEFAULTS)
    around.step()
    around.tool_pods_ready()
    around.to_running()
    del around.raw["status"]["resolved"]["toolPodOwner"]
    around.defaults = WITH_SANDBOXES
    assert around.plan().apply == ()
    assert around.plan().delete == ()


@pytest.mark.parametrize(("before", "after"), [(DEFAULTS, WITH_SANDBOXES), (WITH_SANDBOXES, DEFAULTS)])
def test_a_job_whose_status_is_lost_keeps_what_its_raycluster_began_with(before, after):
    around = around_job(before)
    around.step()
    around.tool_pods_ready()
    around.to_running()
    kept = [there(around), there(around, "StatefulSet")]
    del around.raw["status"]
    around.defaults = after
    around.step()
    around.step()
    assert [there(around), there(around, "StatefulSet")] == kept
    assert around.status["resolved"]["toolPodOwner"] == before.tool_pod_owner


# When they come and go.


def test_a_driver_starts_when_the_pods_of_all_sandboxes_are_ready():
    around = around_job()
    around.step()
    assert there(around) == NAMES
    around.pods_ready()
    around.step()
    around.ray_answers()
    assert around.step().orders.submit is None
    assert around.condition("ClusterReady")["message"].startswith("3 of 6 pods are ready")
    around.tool_pods_ready()
    assert "RLJOB_TOOL_PODS=" in str(around.step().orders.submit)


def test_pods_that_agent_sandbox_does_not_make_are_named():
    around = around_job()
    around.step()
    around.pods_ready()
    around.now += 30
    found = around.plan().waiting
    assert found is not None
    assert found.text == "3 of 3 pods for tools do not exist; `kubectl describe sandbox` says why"


def test_they_go_with_the_raycluster_that_they_belong_to():
    around = training()
    assert around.plan().is_empty
    around.ends(0)
    around.step()
    assert there(around) == []
    for _ in range(2):
        around.deletions_done()
        around.step()
    around.deletions_done()
    assert around.observed.children == ()


def test_a_suspended_job_has_none():
    around = training()
    around.edit(suspend=True)
    around.step()
    around.ends(7)
    around.step()
    around.step()
    assert there(around) == []


def test_a_deleted_sandbox_is_made_again_when_its_pod_is_gone():
    around = training()
    left = tuple(each for each in around.observed.children if each["metadata"]["name"] != NAMES[1])
    around.observed = replace(around.observed, children=left)
    assert around.plan().apply == ()
    around.observed = replace(
        around.observed, tool_pods=tuple(pod for pod in around.observed.tool_pods if pod.name != NAMES[1])
    )
    assert [each["metadata"]["name"] for each in around.plan().apply] == [NAMES[1]]


def with_failed_pod(around: Surroundings, name: str, age_s: float) -> None:
    stage = PodStage(Stage.FAILED, NOW, "The node was low on resource: memory.")
    pods = tuple(
        replace(pod, is_ready=False, stage=stage, created=around.now - age_s) if pod.name == name else pod
        for pod in around.observed.tool_pods
    )
    around.observed = replace(around.observed, tool_pods=pods)


def test_a_sandbox_whose_pod_was_evicted_is_made_anew():
    around = training()
    with_failed_pod(around, NAMES[2], age_s=60)
    assert [(each.kind, each.name) for each in around.plan().delete] == [("Sandbox", NAMES[2])]
    around.step()
    assert around.plan().delete == ()
    around.deletions_done()
    around.step()
    assert there(around) == NAMES


def test_a_pod_that_a_node_refuses_at_once_is_not_replaced_without_a_pause():
    around = training()
    with_failed_pod(around, NAMES[0], age_s=3)
    todo = around.plan()
    assert todo.delete == ()
    assert todo.requeue_after_s is not None
    around.now += 7
    assert [each.name for each in around.plan().delete] == [NAMES[0]]


def test_kubernetes_itself_replaces_a_failed_pod_of_a_statefulset():
    around = around_job(DEFAULTS)
    around.step()
    around.tool_pods_ready()
    around.to_running()
    with_failed_pod(around, NAMES[0], age_s=60)
    assert around.plan().delete == ()
