"""The children: groups, sizes, names, what the pods get, and what counts as drift."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rljob_api import kernels
from rljob_operator.children import children
from rljob_operator.children.rollout_pods import RolloutPods
from rljob_operator.identity import LONGEST_RAYCLUSTER, ClusterRef, cluster_name, service_name
from rljob_operator.job import cluster_shape, storage
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.world.world import Defaults
from support.operator.operator_world import DEFAULTS, Surroundings, admitted, cluster_of, pods, raw_job


def groups(cluster: dict) -> list[tuple[str, int]]:
    return [(group["groupName"], group["replicas"]) for group in cluster["workerGroupSpecs"]]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"placement": "Disaggregated"}, [("trainer", 1), ("rollout", 1)]),
        ({"placement": "Colocated"}, [("workers", 1)]),
        ({"training": {"nodes": 2}, "rollout": {"engines": 6}}, [("trainer", 2), ("rollout", 3)]),
        ({"rollout": {"engines": 3}}, [("trainer", 1), ("rollout", 1), ("rollout-rest", 1)]),
    ],
)
def test_worker_groups_follow_the_topology(sections, expected):
    assert groups(cluster_of(admitted(raw_job(**sections)))) == expected


def test_gpus_are_asked_for_by_workers_and_never_by_the_head():
    cluster = cluster_of(admitted(raw_job(runtime={"device": "Gpu"})))
    workers = [group["template"]["spec"]["containers"][0] for group in cluster["workerGroupSpecs"]]
    assert [worker["resources"]["limits"] for worker in workers] == [{"nvidia.com/gpu": "2"}] * 2
    assert "resources" not in cluster["headGroupSpec"]["template"]["spec"]["containers"][0]


def test_on_cpu_ray_gets_the_slots_and_nobody_asks_for_gpus():
    cluster = cluster_of(admitted(raw_job()))
    assert [group["rayStartParams"] for group in cluster["workerGroupSpecs"]] == [{"num-cpus": "2"}] * 2
    assert "'nvidia.com/gpu'" not in str(cluster)
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_longest_names_keep_within_the_limits():
    job = admitted(raw_job("a" * 40))
    name = cluster_name(job.name, job.uid, 999_999)
    assert len(name) <= LONGEST_RAYCLUSTER
    assert len(service_name(job.name, job.uid)) <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_pods_get_what_the_manifest_gives_them():
    job = admitted(
        raw_job(
            runtime={
                "image": "my/image:1",
                "env": {"HF_HOME": "/cache"},
                "volumes": [{"name": "runs", "emptyDir": {}}],
                "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
                "imagePullSecrets": ["registry"],
            },
            checkpoint={"directory": "/runs/sums"},
            scheduling={"nodeSelector": {"pool": "gpu"}, "tolerations": [{"operator": "Exists"}]},
        )
    )
    pod = cluster_of(job)["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["containers"][0]["image"] == "my/image:1"
    assert {"name": "HF_HOME", "value": "/cache"} in pod["containers"][0]["env"]
    assert {"name": "runs", "mountPath": "/runs"} in pod["containers"][0]["volumeMounts"]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "gpu"}, [{"operator": "Exists"}])
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


HEAD, WORKER = {"requests": {"cpu": 2}}, {"requests": {"memory": "8Gi"}, "limits": {"rdma/ib": 1}}


def resources(runtime: dict, defaults: Defaults) -> list[dict | None]:
    cluster = cluster_of(admitted(raw_job(runtime=runtime), defaults))
    groups = (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0])
    return [group["template"]["spec"]["containers"][0].get("resources") for group in groups]


@pytest.mark.parametrize(
    ("runtime", "defaults", "wanted"),
    [
        ({"device": "Cpu"}, {}, [None, None]),
        ({"device": "Cpu", "headResources": HEAD, "workerResources": WORKER}, {}, [HEAD, WORKER]),
        ({"device": "Cpu"}, {"head_resources": HEAD, "worker_resources": WORKER}, [HEAD, WORKER]),
        ({"device": "Cpu", "headResources": WORKER}, {"head_resources": HEAD}, [WORKER, None]),
        (
            {"device": "Gpu", "workerResources": WORKER},
            {},
            [
                None,
                {
                    "requests": {"memory": "8Gi", "nvidia.com/gpu": "2"},
                    "limits": {"rdma/ib": 1, "nvidia.com/gpu": "2"},
                },
            ],
        ),
    ],
)
def test_pods_ask_for_what_the_manifest_or_the_operator_says_and_for_gpus(runtime, defaults, wanted):
    assert resources(runtime, replace(DEFAULTS, **defaults)) == wanted


def test_no_pod_is_root_or_can_become_it_or_changes_its_image():
    assert [pod["securityContext"] for pod in pods()] == [
        {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    ] * 3
    assert [pod["containers"][0]["securityContext"] for pod in pods()] == [
        {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    ] * 3


def test_a_pod_that_is_still_starting_ends_on_sigterm():
    assert [pod["shareProcessNamespace"] for pod in pods()] == [True] * 3


@pytest.mark.parametrize("pod", pods())
def test_every_pod_can_write_where_programs_write(pod: dict):
    volumes = {volume["name"]: volume.get("emptyDir") for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts.items() >= {"/tmp": {}, "/home/rljob": {}, "/dev/shm": {"medium": "Memory"}}.items()
    assert {"name": "HOME", "value": "/home/rljob"} in pod["containers"][0]["env"]


def test_compilers_of_each_pod_have_a_cache_of_their_own_wherever_home_is():
    shared = {"env": {"HOME": "/shared"}, "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    variables = [
        {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        for pod in pods(runtime={**shared, "volumes": [{"name": "shared", "hostPath": {"path": "/srv"}}]})
    ]
    caches = {name: value for name, value in kernels.ENVIRONMENT.items() if name != kernels.DIRECTORY_VARIABLE}
    assert caches.keys() >= {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    for each in variables:
        directory = each[kernels.DIRECTORY_VARIABLE]
        assert directory.startswith("/tmp/")
        assert all(each[name] == value and value.startswith(f"{directory}/") for name, value in caches.items())


def test_a_manifest_s_own_volume_and_home_come_first():
    given = {
        "env": {"HOME": "/mine"},
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}],
    }
    pod = pods(runtime=given)[1]
    container = pod["containers"][0]
    assert [each["value"] for each in container["env"] if each["name"] == "HOME"] == ["/mine"]
    assert [each["mountPath"] for each in container["volumeMounts"]].count("/dev/shm") == 0
    assert "rljob-shm" not in [volume["name"] for volume in pod["volumes"]]


def test_the_driver_reads_the_manifest_as_it_was_written():
    job = admitted(raw_job())
    text = children.configmap(job, "sums-7f3a1-1")["data"]["manifest.yaml"]
    assert admitted({**job.manifest, "metadata": {**job.manifest["metadata"], "uid": job.uid}}).spec == job.spec
    assert '"gpusPerNode": 2' in text


def test_the_entrypoint_names_the_attempt_and_quotes_the_directory():
    job = admitted(raw_job(checkpoint={"directory": "/runs/it's"}))
    line = children.entrypoint(job, "sums-7f3a1-1", 3, {})
    assert line.startswith("exec python -m rljob_trainer.driver ")
    assert f"--origin {job.uid} --attempt 3" in line
    assert """--log '/runs/it'"'"'s/logs/driver-attempt-3.log'""" in line
    assert "--engines 2" in line
    assert "--preflight" not in line, "what the first attempt has looked at need not be looked at again"
    assert """--directory '/runs/it'"'"'s'""" in line


@pytest.mark.parametrize("live", [{"ttlSecondsAfterFinished": 5}, {"activeDeadlineSeconds": 9}])
def test_what_the_operator_acts_on_itself_needs_no_other_cluster(live):
    assert admitted(raw_job(scheduling=live)).digest == admitted(raw_job()).digest


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [(2, 4, True), (4, 2, True), (3, 5, True), (4, 5, False), (1, 2, False), (3, 1, False)],
)
def test_engines_that_fill_pods_of_the_same_sizes_need_no_other_cluster(before, after, same):
    one, other = (admitted(raw_job(rollout={"engines": engines})).digest for engines in (before, after))
    assert (one == other) is same


def test_colocated_engines_need_another_cluster():
    one, other = (admitted(raw_job(placement="Colocated", rollout={"engines": engines})).digest for engines in (1, 2))
    assert one != other


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 20), st.integers(1, 20))
def test_the_api_server_lets_a_run_scale_where_pods_keep_their_sizes(gpus_per_node, gpus_per_engine, before, after):
    """The rule of `crd.scales`, in Python."""
    sizes = {"training": {"gpusPerNode": gpus_per_node}, "runtime": {"device": "Gpu"}}
    shapes = [
        [(group, size) for group, size, _ in cluster_shape.worker_groups(job.spec)]
        for engines in (before, after)
        if (job := admitted(raw_job(rollout={"engines": engines, "gpusPerEngine": gpus_per_engine}, **sizes))).spec
    ]
    per_node = max(1, gpus_per_node // gpus_per_engine)
    lets = before == after or (min(before, after) >= per_node and before % per_node == after % per_node)
    assume(len(shapes) == 2)
    assert (shapes[0] == shapes[1]) is lets


def test_another_node_selector_needs_another_cluster():
    other = admitted(raw_job(scheduling={"nodeSelector": {"pool": "gpu"}}))
    assert other.digest != admitted(raw_job()).digest


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": {}}, {"a": 1}, False),
    ],
)
def test_only_what_we_want_and_do_not_see_is_drift(there, wanted, expected):
    assert children.contains(there, wanted) is expected


def test_a_directory_is_shared_when_a_mounted_volume_holds_it():
    job = admitted(
        raw_job(
            runtime={
                "volumes": [{"name": "r", "emptyDir": {}}],
                "volumeMounts": [{"name": "r", "mountPath": "/runs"}],
            },
            checkpoint={"directory": "/elsewhere"},
        )
    )
    assert storage.is_shared("/runs/x", job)
    assert not storage.is_shared("/runs-of-others", job)


def ingress(job: AdmittedJob) -> list[dict]:
    rules: list[dict] = children.network_policy(job)["spec"]["ingress"]
    return rules


@pytest.mark.parametrize(("runtime", "port"), [({}, 8644), ({"metricsPort": 9100}, 9100)])
def test_the_port_of_the_metrics_is_named_opened_and_known_to_nobody_else(runtime: dict, port: int):
    job = admitted(raw_job(runtime=runtime))
    (head,) = cluster_of(job)["headGroupSpec"]["template"]["spec"]["containers"]
    assert {"name": "driver-metrics", "containerPort": port} in head["ports"]
    closed = ingress(job)
    scraped = ingress(replace(job, defaults=replace(job.defaults, scrapers={"team": "sre"})))
    (opened,) = [rule for rule in scraped if rule not in closed]
    assert opened["ports"] == [{"port": port, "protocol": "TCP"}]
    assert opened["from"] == [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}]
    anybody = ingress(replace(job, defaults=replace(job.defaults, scrapers={})))
    assert anybody[-1]["from"] == [{"namespaceSelector": {}}]


def test_the_driver_gets_the_address_that_prometheus_scrapes():
    job = admitted(raw_job())
    assert "--attempt 1 --preflight " in children.entrypoint(job, "sums-7f3a1-1", 1, {})
    assert children.entrypoint(job, "sums-7f3a1-1", 1, {}).endswith("--listen 0.0.0.0:8643 --metrics-port 8644")


def all_children(job: AdmittedJob) -> tuple[dict, ...]:
    pods = RolloutPods(cluster_shape.num_rollout_pods(job.spec))
    return (*children.children(job, ClusterRef("sums-7f3a1-1"), 1, pods), children.secret(job, "a token"))


@pytest.mark.parametrize("child", all_children(admitted(raw_job())), ids=lambda child: child["kind"])
def test_every_child_is_found_by_its_label_and_goes_with_its_job(child: dict):
    job = admitted(raw_job())
    assert child["metadata"]["namespace"] == job.namespace
    assert child["metadata"]["labels"] == {"rljob.dev/job": "sums", "app.kubernetes.io/managed-by": "rljob-operator"}
    assert child["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "name": job.name,
            "uid": job.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_every_pod_carries_the_label_of_its_job():
    cluster = cluster_of(admitted(raw_job()))
    templates = [each["template"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    assert {template["metadata"]["labels"]["rljob.dev/job"] for template in templates} == {"sums"}


def test_the_service_leads_to_the_head_of_the_attempt_s_cluster_alone():
    spec = children.service(admitted(raw_job()), "sums-7f3a1-3", 3)["spec"]
    assert spec["selector"] == {"ray.io/cluster": "sums-7f3a1-3", "ray.io/node-type": "head"}
    assert [(port["port"], port["targetPort"]) for port in spec["ports"]] == [(8265, 8265), (8643, 8643)]
    assert {port["protocol"] for port in spec["ports"]} == {"TCP"}


def test_containers_and_the_configmap_have_the_names_that_others_look_for():
    cluster = cluster_of(admitted(raw_job()))
    templates = [each["template"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    names = [[container["name"] for container in template["spec"]["containers"]] for template in templates]
    assert names == [["ray-head"], ["ray-worker"], ["ray-worker"]]
    assert children.configmap(admitted(raw_job()), "sums-7f3a1-3")["metadata"]["name"] == "sums-7f3a1-3"


def test_every_pod_reports_its_eviction_before_its_grace_period_ends():
    cluster = cluster_of(admitted(raw_job(scheduling={"terminationGracePeriodSeconds": 90})))
    templates = [each["template"]["spec"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    hooks = [each["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] for each in templates]
    assert [each["terminationGracePeriodSeconds"] for each in templates] == [90] * 3
    assert [hook[:3] for hook in hooks] == [["python", "-m", "rljob_trainer.control.pod_eviction"]] * 3
    assert [hook[3:] for hook in hooks] == [
        ["--holds=Learner", "--port=8643", "--grace=80"],
        ["--holds=Learner", "--port=8643", "--grace=80"],
        ["--holds=Engines", "--port=8643", "--grace=80"],
    ]


@pytest.mark.parametrize(("probe", "dead_after_s"), [("readinessProbe", 60), ("livenessProbe", 300)])
def test_probes_ask_the_raylet_of_the_pod_and_wait_for_busy_cores(probe: str, dead_after_s: int):
    cluster = cluster_of(admitted(raw_job()))
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    found = [each["template"]["spec"]["containers"][0][probe] for each in groups]
    assert [each["httpGet"] for each in found] == [{"path": "/api/local_raylet_healthz", "port": 52365}] * 3
    assert {each["timeoutSeconds"] for each in found} == {10}
    assert {each["periodSeconds"] * each["failureThreshold"] for each in found} == {dead_after_s}


def test_a_container_that_crashes_leaves_the_end_of_its_log_in_the_status():
    cluster = cluster_of(admitted(raw_job()))
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    policies = [each["template"]["spec"]["containers"][0]["terminationMessagePolicy"] for each in groups]
    assert policies == ["FallbackToLogsOnError"] * 3


def test_pods_get_two_minutes_to_end_unless_the_job_names_another_time():
    head = cluster_of(admitted(raw_job()))["headGroupSpec"]["template"]["spec"]
    assert head["terminationGracePeriodSeconds"] == 120


def test_the_smaller_last_rollout_pod_holds_only_engines_too():
    cluster = cluster_of(admitted(raw_job(rollout={"engines": 3})))
    commands = [str(group["template"]["spec"]["containers"][0]["lifecycle"]) for group in cluster["workerGroupSpecs"]]
    assert ["--holds=Engines" in command for command in commands] == [False, True, True]


@pytest.mark.parametrize(("grace_s", "is_same"), [(120, True), (121, False)])
def test_the_default_grace_period_that_an_upgrade_adds_needs_no_new_cluster(grace_s: int, is_same: bool):
    before, after = (
        admitted(raw_job(**each)) for each in ({}, {"scheduling": {"terminationGracePeriodSeconds": grace_s}})
    )
    assert (before.digest == after.digest) is is_same


def test_the_manifest_is_mounted_for_the_driver_alone():
    head, *workers = pods()
    assert {"name": "rljob-manifest", "configMap": {"name": "sums-7f3a1-1"}} in head["volumes"]
    mount = {"name": "rljob-manifest", "mountPath": "/etc/rljob", "readOnly": True}
    assert mount in head["containers"][0]["volumeMounts"]
    assert "rljob-manifest" not in str(workers)


def test_recovery_may_change_in_flight():
    other = admitted(raw_job(recovery={"driverRestarts": 9}))
    assert other.digest == admitted(raw_job()).digest


def test_the_entrypoint_listens_where_the_service_leads():
    job = admitted(raw_job())
    line = children.entrypoint(job, "sums-7f3a1-1", 1, {})
    assert " --manifest /etc/rljob/manifest.yaml " in line
    assert " --listen 0.0.0.0:8643 " in line


def test_all_pods_of_a_group_are_counted_by_its_three_fields():
    groups = cluster_of(admitted(raw_job(rollout={"engines": 6})))["workerGroupSpecs"]
    counts = [(group["replicas"], group["minReplicas"], group["maxReplicas"]) for group in groups]
    assert counts == [(1, 1, 1), (3, 3, 3)]


def test_a_cluster_has_the_head_and_all_workers():
    spec = admitted(raw_job(rollout={"engines": 3})).spec
    assert (cluster_shape.num_pods(spec), cluster_shape.num_rollout_pods(spec)) == (4, 1)


def test_labels_for_a_batch_scheduler_reach_the_raycluster_and_no_others_do():
    raw, passed = raw_job(), {"volcano.sh/queue-name": "research", "ray.io/gang-scheduling-enabled": "true"}
    raw["metadata"]["labels"] = {**passed, "team": "ml", "ray.io/cluster": "another", "rljob.dev/job": "another"}
    cluster = children.raycluster(admitted(raw), ClusterRef("sums-7f3a1-1"), RolloutPods(1))
    assert cluster["metadata"]["labels"] == {
        "rljob.dev/job": "sums",
        "app.kubernetes.io/managed-by": "rljob-operator",
        **passed,
    }


def test_a_label_for_a_batch_scheduler_that_changes_is_applied_and_builds_no_new_cluster():
    around = Surroundings().to_running()
    around.raw["metadata"]["labels"] = {"kai.scheduler/queue": "research"}
    (applied,) = around.step().apply
    assert (applied["kind"], applied["metadata"]["labels"]["kai.scheduler/queue"]) == ("RayCluster", "research")
    assert len(around.observed.rayclusters()) == 1
    assert around.plan().is_empty


def test_every_pod_reads_its_environment_from_where_the_manifest_says():
    reference = {"valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    for pod in pods(runtime={"env": {"HF_TOKEN": reference, "A": "b"}}):
        env = pod["containers"][0]["env"]
        assert {"name": "HF_TOKEN", **reference} in env
        assert {"name": "A", "value": "b"} in env
