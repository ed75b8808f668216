"""What `spec.pods` makes of the pods of each role."""

import json
from dataclasses import replace

import pytest

from rljob_operator.children import children
from rljob_operator.children.rollout_pods import RolloutPods
from rljob_operator.identity import ClusterRef, Manifest
from rljob_operator.job import cluster_shape
from rljob_operator.job.admitted_job import admitted_job
from rljob_operator.world.silent_nodes import TAINTS
from rljob_operator.world.world import Job, job_of
from support.operator.operator_world import DEFAULTS, Surroundings, admitted, cluster_of, raw_job

CLUSTER = "sums-7f3a1-1"
BUILT = ClusterRef(CLUSTER)
GPU = {"device": "Gpu"}


def templates(**sections: object) -> dict[str, dict]:
    """Return the pod templates of the head and of each worker group, by name."""
    job = admitted(raw_job(**sections))
    cluster = children.raycluster(job, BUILT, RolloutPods(cluster_shape.num_rollout_pods(job.spec)))["spec"]
    workers = {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    return {"head": cluster["headGroupSpec"]["template"], **workers}


def ray(template: dict) -> dict:
    container: dict = template["spec"]["containers"][0]
    return container


def test_each_role_has_its_own_metadata_nodes_and_classes():
    found = templates(
        pods={
            "head": {"labels": {"team": "rl"}, "nodeSelector": {"pool": "cpu"}, "schedulerName": "volcano"},
            "trainer": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}, "runtimeClassName": "nvidia"},
            "rollout": {"tolerations": [{"key": "spot", "operator": "Exists"}]},
        },
        scheduling={"nodeSelector": {"pool": "gpu", "zone": "a"}, "tolerations": [{"key": "gpu"}]},
    )
    head, trainer, rollout = (found[name] for name in ("head", "trainer", "rollout"))
    assert head["metadata"]["labels"] == {
        "team": "rl",
        "rljob.dev/job": "sums",
        "app.kubernetes.io/managed-by": "rljob-operator",
    }
    assert head["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "a"}
    assert head["spec"]["schedulerName"] == "volcano"
    assert trainer["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma"}
    assert trainer["spec"]["runtimeClassName"] == "nvidia"
    assert [each["key"] for each in rollout["spec"]["tolerations"]] == ["gpu", "spot", *TAINTS]
    assert [each["key"] for each in trainer["spec"]["tolerations"]] == ["gpu", *TAINTS]


def test_the_workers_of_a_colocated_job_are_trainers():
    found = templates(placement="Colocated", pods={"trainer": {"schedulerName": "volcano"}})
    assert found["workers"]["spec"]["schedulerName"] == "volcano"


def test_a_role_s_resources_come_before_those_of_the_runtime():
    found = templates(
        pods={"head": {"resources": {"requests": {"cpu": 9}}}, "rollout": {"resources": {"limits": {"rdma/ib": 1}}}},
        runtime={**GPU, "headResources": {"requests": {"cpu": 1}}, "workerResources": {"requests": {"cpu": 2}}},
    )
    assert ray(found["head"])["resources"] == {"requests": {"cpu": 9}}
    assert ray(found["trainer"])["resources"]["requests"] == {"cpu": 2, "nvidia.com/gpu": "2"}
    assert ray(found["rollout"])["resources"] == {
        "limits": {"rdma/ib": 1, "nvidia.com/gpu": "2"},
        "requests": {"nvidia.com/gpu": "2"},
    }


@pytest.mark.parametrize("gpu", ["amd.com/gpu", "nvidia.com/mig-3g.40gb"])
def test_gpus_may_have_another_name_and_then_ray_gets_their_number(gpu: str):
    job = admitted(raw_job(runtime=GPU, pods={"gpuResource": gpu}))
    groups = children.raycluster(job, BUILT, RolloutPods(1))["spec"]["workerGroupSpecs"]
    assert [ray(group["template"])["resources"]["limits"] for group in groups] == [{gpu: "2"}] * 2
    assert [group["rayStartParams"] for group in groups] == [{"num-gpus": "2"}] * 2


def test_the_head_prefers_nodes_without_gpus():
    found = templates(runtime=GPU)
    (preferred,) = found["head"]["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    absent = {each["key"] for each in preferred["preference"]["matchExpressions"] if each["operator"] == "DoesNotExist"}
    assert {"nvidia.com/gpu.present", "cloud.google.com/gke-accelerator"} <= absent
    assert preferred["weight"] == 100, "the largest that the API server takes"
    assert "affinity" not in found["trainer"]["spec"]


def test_an_affinity_of_the_head_replaces_its_own():
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert templates(pods={"head": {"affinity": affinity}})["head"]["spec"]["affinity"] == affinity


def test_one_domain_holds_all_workers_and_not_the_head():
    mine = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    found = templates(
        pods={"sameDomain": "nvidia.com/gpu.clique", "trainer": {"affinity": {"podAffinity": {required: [mine]}}}}
    )
    domain = {
        "labelSelector": {"matchLabels": {"ray.io/cluster": CLUSTER, "ray.io/node-type": "worker"}},
        "topologyKey": "nvidia.com/gpu.clique",
    }
    assert found["trainer"]["spec"]["affinity"] == {"podAffinity": {required: [mine, domain]}}
    assert found["rollout"]["spec"]["affinity"] == {"podAffinity": {required: [domain]}}
    assert "podAffinity" not in found["head"]["spec"]["affinity"]


def test_a_spread_without_a_selector_counts_the_pods_of_its_role():
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    found = templates(pods={name: {"topologySpreadConstraints": [spread]} for name in ("head", "rollout")})
    selectors = [
        each["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
        for each in (found["head"], found["rollout"])
    ]
    assert selectors == [
        {"ray.io/cluster": CLUSTER, "ray.io/group": "headgroup"},
        {"ray.io/cluster": CLUSTER, "ray.io/group": "rollout"},
    ]


def test_rdma_gets_the_node_s_network_and_locked_memory():
    found = templates(pods={"trainer": {"hostNetwork": True, "capabilities": ["IPC_LOCK"]}})
    pod = found["trainer"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert ray(found["trainer"])["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert ray(found["rollout"])["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_patch_adds_containers_and_changes_ray_s_own():
    patch = {
        "spec": {
            "initContainers": [{"name": "fetch", "image": "busybox"}],
            "containers": [{"name": "logs", "image": "vector"}, {"name": "ray-worker", "tty": True}],
            "priorityClassName": None,
        }
    }
    found = templates(pods={"trainer": {"template": patch}}, scheduling={"priorityClassName": "low"})
    pod = found["trainer"]["spec"]
    assert [each["name"] for each in pod["containers"]] == ["ray-worker", "logs"]
    assert ray(found["trainer"])["tty"] is True
    assert ray(found["trainer"])["image"] == DEFAULTS.image
    assert [each["name"] for each in pod["initContainers"]] == [
        "rljob-namespace-directory",
        "rljob-run-directory",
        "fetch",
    ]
    assert "priorityClassName" not in pod
    assert found["rollout"]["spec"]["priorityClassName"] == "low"


def test_an_empty_section_changes_no_pod_but_other_settings_need_another_cluster():
    assert templates(pods={"trainer": {}}) == templates()
    digests = {admitted(raw_job(**given)).digest for given in ({}, {"pods": {"trainer": {"hostNetwork": True}}})}
    assert len(digests) == 2


def test_the_driver_of_an_older_image_never_sees_the_section():
    job = admitted(raw_job(pods={"head": {"hostNetwork": True}}))
    manifest = json.loads(children.configmap(job, CLUSTER)["data"]["manifest.yaml"])
    assert "pods" not in manifest["spec"]
    assert manifest["spec"].keys() >= {"model", "rollout", "training"}


def test_resources_of_a_role_are_not_taken_for_the_defaults_of_a_job_whose_status_is_lost():
    raw = raw_job(runtime=GPU, pods={"gpuResource": "amd.com/gpu", "trainer": {"resources": {"requests": {"cpu": 4}}}})
    cluster = children.raycluster(admitted(raw), BUILT, RolloutPods(1))
    job: Job = job_of(raw)
    assert job.spec is not None
    assert admitted_job(job, job.spec, DEFAULTS, [cluster]).resolved.worker_resources == {}
    plain = raw_job(runtime={**GPU, "workerResources": {"limits": {"rdma/ib": 1}}}, pods={"gpuResource": "amd.com/gpu"})
    built = children.raycluster(admitted(plain), BUILT, RolloutPods(1))
    job = job_of(raw_job(runtime=GPU, pods={"gpuResource": "amd.com/gpu"}))
    assert job.spec is not None
    assert admitted_job(job, job.spec, DEFAULTS, [built]).resolved.worker_resources == {"limits": {"rdma/ib": 1}}


def test_planning_with_settings_of_pods_comes_to_rest():
    surroundings = Surroundings(
        raw_job(pods={"sameDomain": "rack", "trainer": {"template": {"spec": {"hostname": "x"}}}})
    )
    surroundings.to_running()
    assert surroundings.plan().is_empty


OF_THE_OPERATOR = {"name": "rljob-storage", "mountPath": "/all"}
GREEDY = [
    {"containers": [{"name": "spy", "image": "x", "volumeMounts": [OF_THE_OPERATOR]}]},
    {"containers": [{"name": "ray-head", "volumeMounts": [OF_THE_OPERATOR]}]},
    {"containers": [{"name": "ray-head", "volumeMounts": [{"mountPath": "/rljob/ml/sums", "subPath": None}]}]},
    {"containers": [{"name": "ray-head", "volumeMounts": [{"mountPath": "/rljob/ml/sums", "subPath": "b"}]}]},
    {"containers": [{"name": "spy", "volumeDevices": [{"name": "rljob-storage", "devicePath": "/dev/x"}]}]},
    {"containers": [{"name": "ray-head", "$patch": "replace", "volumeMounts": [OF_THE_OPERATOR]}]},
    {"ephemeralContainers": [{"name": "spy", "volumeMounts": [OF_THE_OPERATOR]}]},
    {"initContainers": [{"name": "spy", "volumeMounts": [{**OF_THE_OPERATOR, "subPathExpr": "$(A)"}]}]},
    {"initContainers": [{"name": "rljob-run-directory", "image": "evil", "command": ["rm"]}]},
    {"initContainers": [{"name": "rljob-run-directory", "$patch": "delete"}]},
    {"initContainers": None},
    {"initContainers": "none"},
    {"initContainers": [None, {"name": "spy", "volumeMounts": [OF_THE_OPERATOR, 7]}]},
    {"volumes": [{"name": "rljob-storage", "hostPath": {"path": "/"}, "emptyDir": None}]},
    {"volumes": None},
    {"$patch": "replace", "containers": [{"name": "spy", "volumeMounts": [OF_THE_OPERATOR]}]},
]


def of_operator(pod: Manifest) -> Manifest:
    """Return what a pod has of the operator's: containers, volumes, and mounts of these volumes."""
    lists = ("initContainers", "volumes")
    own = {kind: [each for each in pod.get(kind, []) if each["name"].startswith("rljob-")] for kind in lists}
    kinds = ("initContainers", "containers", "ephemeralContainers")
    mounts = [
        (container["name"], mount)
        for kind in kinds
        for container in pod.get(kind, [])
        for mount in (*container.get("volumeMounts", []), *container.get("volumeDevices", []))
    ]
    return {**own, "mounts": [each for each in mounts if each[1].get("name", "rljob-").startswith("rljob-")]}


@pytest.mark.parametrize("patch", GREEDY, ids=str)
def test_no_patch_of_a_job_that_has_begun_reaches_more_of_the_operator_s_volume(patch: dict):
    """Admission refuses these patches. A job that has begun goes on, also with a manifest that is refused now."""
    attempt = {"number": 1, "cluster": "sums-7f3a1-1", "startAfter": "2026-11-27T10:00:00Z"}
    raw = {**raw_job(pods={"head": {"template": {"spec": patch}}}), "status": {"attempts": [attempt]}}
    job = job_of(raw)
    assert job.spec is None
    assert job.readable is not None
    spec = job.readable.spec
    found = of_operator(
        cluster_of(admitted_job(replace(job, status={}), spec, DEFAULTS))["headGroupSpec"]["template"]["spec"]
    )
    whole = of_operator(templates()["head"]["spec"])
    assert {kind: found[kind] for kind in ("initContainers", "volumes")} == {
        kind: whole[kind] for kind in ("initContainers", "volumes")
    }
    assert all(mount in whole["mounts"] for mount in found["mounts"])
