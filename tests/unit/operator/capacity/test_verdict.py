"""Never, Later or Fits: from quotas, limit ranges and nodes to a sentence with numbers and the nearest setting."""

from typing import Any

import pytest

from rljob_api.rules.quantity import thousandths
from rljob_operator.capacity.demand import Container, Pods, demand, total
from rljob_operator.capacity.obstacle import Outcome
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.quantities import amounts, shown
from rljob_operator.capacity.quotas import Quota, counts, limits_of, quota_of
from rljob_operator.capacity.snapshot import coming_of, requests_of, snapshot, used_by_node
from rljob_operator.capacity.verdict import Capacity, verdict
from support.operator.operator_world import admitted, raw_job

GPU = "nvidia.com/gpu"
TWELVE = {
    "training": {"steps": 10, "gpusPerNode": 8, "optimizer": {"learningRate": 1e-5}},
    "rollout": {"engines": 4, "samplesPerPrompt": 8, "promptsPerStep": 8, "sampling": {"maxNewTokens": 8}},
    "runtime": {"device": "Gpu"},
}


def job(**sections: Any):
    return admitted(raw_job(**{**TWELVE, **sections}))


def quota(name: str = "team-a", used: dict[str, Any] | None = None, **spec: Any) -> Quota:
    return quota_of({"metadata": {"name": name}, "spec": spec, "status": {"used": used or {}}})


def gpu_node(name: str, gpus: int = 8, used: int = 0, **more: Any) -> Node:
    has = amounts({GPU: gpus, "cpu": "64", "memory": "512Gi", "pods": "110"})
    return Node(name, has, used=amounts({GPU: used}), **more)


def test_demand_is_read_from_the_cluster_that_would_be_built():
    found = demand(job(runtime={"device": "Gpu", "workerResources": {"requests": {"cpu": "6", "rdma/hca": "1"}}}))
    assert [(pods.group, pods.count) for pods in found] == [("head", 1), ("trainer", 1), ("rollout", 1)]
    assert total(found) == amounts({"pods": 3, GPU: 12, "cpu": "12.1", "rdma/hca": 2, "memory": "576Mi"})


@pytest.mark.parametrize(("policy", "cpu"), [({"restartPolicy": "Always"}, "5"), ({}, "3")])
def test_a_sidecar_of_a_job_is_added_and_an_init_container_is_not(policy: dict[str, str], cpu: str):
    extra = {"name": "extra", "image": "extra:1", "resources": {"requests": {"cpu": "3"}}, **policy}
    trainer = {"resources": {"requests": {"cpu": "2"}}, "template": {"spec": {"initContainers": [extra]}}}
    (found,) = (pods for pods in demand(job(pods={"trainer": trainer})) if pods.group == "trainer")
    assert found.requests["cpu"] == thousandths(cpu)


def test_never_names_numbers_and_the_nearest_setting_that_fits():
    found = verdict(job(), Capacity(quotas=(quota(hard={f"requests.{GPU}": "10"}),)))
    assert found.outcome is Outcome.NEVER
    assert found.message == (
        "needs 12 × nvidia.com/gpu; ResourceQuota team-a allows 10 × nvidia.com/gpu in all; "
        "spec.placement: Colocated would need 8 × nvidia.com/gpu"
    )


def test_the_nearest_setting_is_sought_beyond_the_first_ones():
    found = verdict(job(), Capacity(quotas=(quota(hard={f"requests.{GPU}": "6"}),)))
    assert found.instead == "spec.training.gpusPerNode: 2 would need 6 × nvidia.com/gpu"


def test_a_setting_that_fits_no_better_is_not_suggested():
    assert verdict(job(), Capacity(quotas=(quota(hard={f"requests.{GPU}": "0"}),))).instead is None


def test_what_would_only_have_to_wait_is_not_said_beside_what_can_never_be():
    quotas = (quota("small", hard={f"requests.{GPU}": "10"}), quota("busy", used={"pods": "9"}, hard={"pods": "10"}))
    found = verdict(job(), Capacity(quotas))
    assert found.outcome is Outcome.NEVER
    assert "busy" not in found.message


def test_later_says_what_is_left():
    used = {f"requests.{GPU}": "10"}
    found = verdict(job(), Capacity(quotas=(quota(used=used, hard={f"requests.{GPU}": "16"}),)))
    assert found.outcome is Outcome.LATER
    assert "ResourceQuota team-a leaves 6 × nvidia.com/gpu; 10 × nvidia.com/gpu are in use" in found.message


def test_fits_within_everything():
    nodes = (gpu_node("a"), gpu_node("b"))
    found = verdict(job(), Capacity(quotas=(quota(hard={f"requests.{GPU}": "12"}),), nodes=nodes, coming=()))
    assert found.outcome is Outcome.FITS
    assert found.message == ""


@pytest.mark.parametrize(("coming", "outcome"), [(None, Outcome.LATER), ((), Outcome.NEVER)])
def test_a_shape_that_no_node_has_is_never_only_where_no_other_node_can_come(coming, outcome):
    found = verdict(job(), Capacity(nodes=(gpu_node("a", 4), gpu_node("b", 4), gpu_node("c", 4)), coming=coming))
    assert found.outcome is outcome
    assert "a pod of the group trainer needs 8 × nvidia.com/gpu; the largest node has 4 × nvidia.com/gpu" in str(
        found.message
    )


def test_what_an_autoscaler_can_bring_counts_as_later():
    brought = coming_of([{"count": 2, "allocatable": {GPU: "8", "cpu": "64", "memory": "512Gi"}}])
    assert verdict(job(), Capacity(nodes=(), coming=brought)).outcome is Outcome.LATER
    assert verdict(job(), Capacity(nodes=(), coming=brought[:1])).outcome is Outcome.NEVER


def test_gpus_that_others_hold_come_back():
    found = verdict(job(), Capacity(nodes=(gpu_node("a", used=4), gpu_node("b", used=2)), coming=()))
    assert found.outcome is Outcome.LATER
    assert "matching nodes have 10 × nvidia.com/gpu free" in found.message


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (gpu_node("a", taints=({"key": "team", "value": "b", "effect": "NoSchedule"},)), "taint team=b:NoSchedule"),
        (gpu_node("a", labels={"pool": "cpu"}), "labels pool=gpu of spec.scheduling.nodeSelector"),
    ],
)
def test_nodes_that_keep_the_pods_out_do_not_count(node, says):
    scheduling = {"nodeSelector": {"pool": "gpu"}} if node.labels else {}
    found = verdict(job(scheduling=scheduling), Capacity(nodes=(node, node), coming=()))
    assert found.outcome is Outcome.NEVER
    assert says in found.message


def test_a_toleration_lets_the_pods_in():
    taints = ({"key": "team", "value": "b", "effect": "NoSchedule"},)
    nodes = (gpu_node("a", taints=taints), gpu_node("b", taints=taints))
    tolerations = [{"key": "team", "operator": "Exists"}]
    found = verdict(job(scheduling={"tolerations": tolerations}), Capacity(nodes=nodes, coming=()))
    assert found.outcome is Outcome.FITS


def test_a_node_under_pressure_keeps_pods_out_only_for_now():
    """Its taint goes away by itself."""
    pressed = ({"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"},)
    found = verdict(job(), Capacity(nodes=(gpu_node("a"), gpu_node("b", taints=pressed)), coming=()))
    assert found.outcome is Outcome.LATER
    text = "matching nodes have 8 × nvidia.com/gpu free; 1 more have the taint node.kubernetes.io/memory-pressure"
    assert text in found.message


def test_each_taint_that_goes_away_is_named_once():
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/disk-pressure", "node.kubernetes.io/disk-pressure")
    taints = [{"key": key, "effect": "NoExecute"} for key in keys]
    other = {"key": "team", "effect": "PreferNoSchedule"}
    nodes = [gpu_node(f"n{index}", taints=(taint, other)) for index, taint in enumerate(taints)]
    found = verdict(job(), Capacity(nodes=tuple(nodes), coming=()))
    assert found.outcome is Outcome.LATER
    named = "3 more have the taint node.kubernetes.io/disk-pressure or node.kubernetes.io/unreachable"
    assert f"matching nodes have 0 × nvidia.com/gpu free; {named}" in found.message


def test_a_cordoned_node_may_come_back():
    nodes = (gpu_node("a"), gpu_node("b", is_schedulable=False))
    assert verdict(job(), Capacity(nodes=nodes, coming=())).outcome is Outcome.LATER


def test_a_quota_of_memory_refuses_pods_that_request_none():
    found = verdict(job(), Capacity(quotas=(quota(hard={"limits.memory": "64Gi"}),)))
    assert found.outcome is Outcome.NEVER
    assert "pods of the group head have no limit of memory: set spec.runtime.headResources" in found.message


def test_a_limit_range_completes_what_a_quota_counts():
    raw = {"type": "Container", "default": {"memory": "4Gi"}, "defaultRequest": {"memory": "2Gi"}}
    limits = limits_of({"metadata": {"name": "usual"}, "spec": {"limits": [raw]}})
    quotas = (quota(hard={"limits.memory": "12Gi", "requests.memory": "6Gi"}),)
    assert verdict(job(), Capacity(quotas, limits)).outcome is Outcome.FITS


def test_a_container_above_a_limit_range_is_never():
    raw = {"type": "Container", "max": {"cpu": "4"}}
    limits = limits_of({"metadata": {"name": "small"}, "spec": {"limits": [raw]}})
    resources = {"device": "Gpu", "workerResources": {"requests": {"cpu": "8"}}}
    found = verdict(job(runtime=resources), Capacity(limits=limits))
    assert "LimitRange small allows at most 4 of cpu, and the request of a container of the group trainer is 8" in (
        found.message
    )


@pytest.mark.parametrize(
    ("scopes", "outcome"),
    [
        ({"scopes": ["NotTerminating"]}, Outcome.NEVER),
        ({"scopes": ["Terminating"]}, Outcome.FITS),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["x"]}]
                }
            },
            0,
        ),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}}, 2),
    ],
)
def test_a_quota_counts_only_pods_in_its_scope(scopes, outcome):
    assert verdict(job(), Capacity((quota(hard={"pods": "2"}, **scopes),))).outcome == outcome


@pytest.mark.parametrize(
    ("operator", "values", "with_class", "without"),
    [
        ("Exists", [], True, False),
        ("DoesNotExist", [], False, True),
        ("In", ["urgent"], True, False),
        ("In", ["other"], False, False),
        ("NotIn", ["urgent"], False, True),
        ("NotIn", ["other"], True, True),
        ("Gt", ["urgent"], False, False),
    ],
)
def test_a_scope_of_priority_classes_covers_pods_by_their_class(
    operator: str, values: list[str], with_class: bool, without: bool
):
    scope = {"scopeName": "PriorityClass", "operator": operator, "values": values}
    limit = quota(hard={"pods": "1"}, scopeSelector={"matchExpressions": [scope]})
    pods = [Pods("g", 2, (), {}, (), name) for name in ("urgent", None)]
    assert [counts(limit, [each]) == {"pods": 2000} for each in pods] == [with_class, without]


@pytest.mark.parametrize(("name", "best_effort", "other"), [("BestEffort", 2000, 0), ("NotBestEffort", 0, 2000)])
def test_a_scope_of_a_quality_of_service_covers_pods_by_their_requests(name: str, best_effort: int, other: int):
    limit = quota(hard={"pods": "1"}, scopes=[name])
    pods = [Pods("g", 2, (Container(size, {}),), {}, (), None) for size in ({}, {"cpu": 100})]
    assert [counts(limit, [each])["pods"] for each in pods] == [best_effort, other]


def test_pods_count_as_pods():
    found = verdict(job(), Capacity((quota(hard={"pods": "2"}),)))
    assert "needs 3 pods; ResourceQuota team-a allows 2 pods in all; spec.placement: Colocated would need 2 pods" in (
        found.message
    )


def test_other_devices_count_as_gpus_do():
    resources = {"device": "Gpu", "workerResources": {"limits": {"rdma/hca": "1"}}}
    found = verdict(job(runtime=resources), Capacity(nodes=(gpu_node("a"), gpu_node("b")), coming=()))
    assert found.message.startswith(
        "needs 2 × rdma/hca; a pod of the group trainer needs 1 × rdma/hca; the largest node has 0 × rdma/hca"
    )


DEVICES = ("amd.com/gpu", "nvidia.com/mig-3g.40gb")


def devices(resource: str, number: int) -> Node:
    return Node("devices", amounts({resource: number, GPU: 8, "cpu": "64", "memory": "512Gi", "pods": "110"}))


@pytest.mark.parametrize("resource", DEVICES)
def test_devices_of_other_makers_and_parts_of_gpus_are_counted_where_the_job_asks_for_them(resource: str):
    wanted = job(pods={"gpuResource": resource})
    assert (total(demand(wanted))[resource], GPU in total(demand(wanted))) == (12_000, False)
    nodes, two = (devices(resource, 8),), (devices(resource, 8), devices(resource, 8))
    too_few = quota(hard={f"requests.{resource}": "10", f"requests.{GPU}": "0"})
    assert verdict(wanted, Capacity((too_few,))).message == (
        f"needs 12 × {resource}; ResourceQuota team-a allows 10 × {resource} in all; "
        f"spec.placement: Colocated would need 8 × {resource}"
    )
    in_use = quota(hard={f"requests.{resource}": "16"}, used={f"requests.{resource}": "10"})
    found = verdict(wanted, Capacity((in_use,), nodes=two, coming=()), searches_for_later=False)
    assert found.outcome is Outcome.LATER
    assert f"ResourceQuota team-a leaves 6 × {resource}; 10 × {resource} are in use" in found.message
    found = verdict(wanted, Capacity(nodes=nodes, coming=()))
    assert found.outcome is Outcome.NEVER
    assert f"all matching nodes together have 8 × {resource}" in found.message
    assert verdict(wanted, Capacity(nodes=two, coming=())).outcome is Outcome.FITS
    assert verdict(job(), Capacity(nodes=two, coming=())).outcome is Outcome.FITS


@pytest.mark.parametrize("resource", DEVICES)
def test_whole_gpus_do_not_stand_for_other_devices(resource: str):
    found = verdict(job(pods={"gpuResource": resource}), Capacity(nodes=(gpu_node("a"), gpu_node("b")), coming=()))
    assert found.outcome is Outcome.NEVER
    assert f"the largest node has 0 × {resource}" in found.message


def test_a_snapshot_counts_the_pods_that_run_on_a_node():
    def pod(node: str, phase: str, gpus: int) -> dict[str, Any]:
        container = {"resources": {"requests": {GPU: str(gpus)}}}
        return {"spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}

    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {GPU: "8", "pods": "110"}}
    seen = snapshot(
        quotas=[{"metadata": {"name": "q", "namespace": "ml"}, "spec": {"hard": {"pods": "9"}}}],
        limits=[],
        nodes=[{"metadata": {"name": "a"}, "spec": {}, "status": ready}],
        used=used_by_node([pod("a", "Running", 3), pod("a", "Succeeded", 4), pod("b", "Running", 1)]),
    )
    assert seen.of("ml").nodes[0].free[GPU] == 5000
    assert seen.of("other").quotas == ()


def test_a_sidecar_is_added_and_an_init_container_is_not():
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    pod = {
        "containers": [container("2")],
        "initContainers": [container("3"), container("1", restartPolicy="Always")],
        "overhead": {"cpu": "100m"},
    }
    assert requests_of(pod)["cpu"] == 3100


@pytest.mark.parametrize(
    ("text", "amount"),
    [("500m", 500), ("1", 1000), ("1.5", 1500), ("1Ki", 1024000), ("1e3", 10**6), ("2k", 2 * 10**6), ("1n", 1)],
)
def test_quantities(text, amount):
    assert thousandths(text) == amount


def test_a_word_is_no_quantity():
    with pytest.raises(ValueError, match="'many' is not a quantity"):
        thousandths("many")


def test_amounts_are_shown_for_people():
    assert [shown(*each) for each in (("cpu", 1500), ("memory", thousandths("1.5Gi")), (GPU, 8000))] == [
        "1500m of cpu",
        "1.5Gi of memory",
        "8 × nvidia.com/gpu",
    ]
