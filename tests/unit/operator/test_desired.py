"""The children: groups, sizes, names, what the pods get, and what counts as drift."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from operator_world import DEFAULTS, raw_job
from rljob_operator import desired
from rljob_operator.identity import LONGEST_RAYCLUSTER, cluster_name, service_name
from rljob_operator.rollout_pods import RolloutPods
from rljob_operator.world import Defaults, Job, job_of


def cluster_of(job: Job, defaults: Defaults = DEFAULTS) -> dict:
    assert job.spec is not None
    pods = RolloutPods(desired.num_rollout_pods(job.spec))
    return desired.raycluster(job, "sums-7f3a1-1", job.spec, defaults, pods)["spec"]


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
    assert groups(cluster_of(job_of(raw_job(**sections)))) == expected


def test_gpus_are_asked_for_by_workers_and_never_by_the_head():
    cluster = cluster_of(job_of(raw_job(runtime={"device": "Gpu"})))
    workers = [group["template"]["spec"]["containers"][0] for group in cluster["workerGroupSpecs"]]
    assert [worker["resources"]["limits"] for worker in workers] == [{"nvidia.com/gpu": "2"}] * 2
    assert "resources" not in cluster["headGroupSpec"]["template"]["spec"]["containers"][0]


def test_on_cpu_ray_is_told_the_slots_and_nobody_asks_for_gpus():
    cluster = cluster_of(job_of(raw_job()))
    assert [group["rayStartParams"] for group in cluster["workerGroupSpecs"]] == [{"num-cpus": "2"}] * 2
    assert "nvidia.com/gpu" not in str(cluster)
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_longest_names_keep_within_the_limits():
    job = job_of(raw_job("a" * 40))
    name = cluster_name(job.name, job.uid, 999_999)
    assert len(name) <= LONGEST_RAYCLUSTER
    assert len(service_name(job.name, job.uid)) <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_pods_get_what_the_manifest_gives_them():
    job = job_of(
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
    cluster = cluster_of(job_of(raw_job(runtime=runtime)), defaults)
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


def pods(**sections: object) -> list[dict]:
    """Return the specs of the head's pod and of each group's."""
    cluster = cluster_of(job_of(raw_job(**sections)))
    return [each["template"]["spec"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


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


@pytest.mark.parametrize("pod", pods())
def test_every_pod_can_write_where_programs_write(pod: dict):
    volumes = {volume["name"]: volume.get("emptyDir") for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts.items() >= {"/tmp": {}, "/home/rljob": {}, "/dev/shm": {"medium": "Memory"}}.items()
    assert {"name": "HOME", "value": "/home/rljob"} in pod["containers"][0]["env"]


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
    job = job_of(raw_job())
    text = desired.configmap(job, "sums-7f3a1-1")["data"]["manifest.yaml"]
    assert job_of({**job.manifest, "metadata": {**job.manifest["metadata"], "uid": job.uid}}).spec == job.spec
    assert '"gpusPerNode": 2' in text


def test_the_entrypoint_names_the_attempt_and_quotes_the_directory():
    job = job_of(raw_job(checkpoint={"directory": "/runs/it's"}))
    assert job.spec is not None
    line = desired.entrypoint(job, 3, job.spec, DEFAULTS)
    assert line.startswith("exec python -m rljob_trainer.driver ")
    assert f"--origin {job.uid} --attempt 3" in line
    assert """--log '/runs/it'"'"'s/logs/driver-attempt-3.log'""" in line
    assert "--engines 2" in line
    assert "--preflight" not in line, "what the first attempt has looked at need not be looked at again"
    assert """--directory '/runs/it'"'"'s'""" in line


@pytest.mark.parametrize("live", [{"suspend": True}, {"ttlSecondsAfterFinished": 5}, {"activeDeadlineSeconds": 9}])
def test_what_the_operator_acts_on_itself_needs_no_other_cluster(live):
    assert desired.digest(job_of(raw_job(scheduling=live))) == desired.digest(job_of(raw_job()))


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [(2, 4, True), (4, 2, True), (3, 5, True), (4, 5, False), (1, 2, False), (3, 1, False)],
)
def test_engines_that_fill_pods_of_the_same_sizes_need_no_other_cluster(before, after, same):
    one, other = (desired.digest(job_of(raw_job(rollout={"engines": engines}))) for engines in (before, after))
    assert (one == other) is same


def test_colocated_engines_need_another_cluster():
    one, other = (
        desired.digest(job_of(raw_job(placement="Colocated", rollout={"engines": engines}))) for engines in (1, 2)
    )
    assert one != other


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 20), st.integers(1, 20))
def test_the_api_server_lets_a_run_scale_where_pods_keep_their_sizes(gpus_per_node, gpus_per_engine, before, after):
    """The rule of `crd.scales`, in Python."""
    sizes = {"training": {"gpusPerNode": gpus_per_node}, "runtime": {"device": "Gpu"}}
    shapes = [
        [(group, size) for group, size, _ in desired.worker_groups(job.spec)]
        for engines in (before, after)
        if (job := job_of(raw_job(rollout={"engines": engines, "gpusPerEngine": gpus_per_engine}, **sizes))).spec
    ]
    per_node = max(1, gpus_per_node // gpus_per_engine)
    lets = before == after or (min(before, after) >= per_node and before % per_node == after % per_node)
    assume(len(shapes) == 2)
    assert (shapes[0] == shapes[1]) is lets


def test_another_node_selector_needs_another_cluster():
    other = job_of(raw_job(scheduling={"nodeSelector": {"pool": "gpu"}}))
    assert desired.digest(other) != desired.digest(job_of(raw_job()))


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
    assert desired.contains(there, wanted) is expected


def test_a_directory_is_shared_when_a_mounted_volume_holds_it():
    job = job_of(
        raw_job(
            runtime={
                "volumes": [{"name": "r", "emptyDir": {}}],
                "volumeMounts": [{"name": "r", "mountPath": "/runs"}],
            },
            checkpoint={"directory": "/elsewhere"},
        )
    )
    assert job.spec is not None
    assert desired.is_shared("/runs/x", job.spec, DEFAULTS)
    assert not desired.is_shared("/runs-of-others", job.spec, DEFAULTS)


@pytest.mark.parametrize(("runtime", "port"), [({}, 8644), ({"metricsPort": 9100}, 9100)])
def test_the_port_of_the_metrics_is_named_opened_and_told_to_nobody_else(runtime: dict, port: int):
    job = job_of(raw_job(runtime=runtime))
    assert job.spec is not None
    (head,) = cluster_of(job)["headGroupSpec"]["template"]["spec"]["containers"]
    assert {"name": "driver-metrics", "containerPort": port} in head["ports"]
    closed = desired.network_policy(job, job.spec, DEFAULTS)["spec"]["ingress"]
    scraped = desired.network_policy(job, job.spec, replace(DEFAULTS, scrapers={"team": "sre"}))["spec"]["ingress"]
    (opened,) = [rule for rule in scraped if rule not in closed]
    assert opened["ports"] == [{"port": port, "protocol": "TCP"}]
    assert opened["from"] == [{"namespaceSelector": {"matchLabels": {"team": "sre"}}}]
    anybody = desired.network_policy(job, job.spec, replace(DEFAULTS, scrapers={}))["spec"]["ingress"]
    assert anybody[-1]["from"] == [{"namespaceSelector": {}}]


def test_the_driver_is_told_where_prometheus_looks():
    job = job_of(raw_job())
    assert job.spec is not None
    assert "--attempt 1 --preflight " in desired.entrypoint(job, 1, job.spec, DEFAULTS)
    assert desired.entrypoint(job, 1, job.spec, DEFAULTS).endswith("--listen 0.0.0.0:8643 --metrics-port 8644")
