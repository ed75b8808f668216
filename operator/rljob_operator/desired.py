"""The children that a job should have. Pure: from the spec to manifests, complete and always the same.

    Secret          control token, made once
    ConfigMap       the manifest that the driver reads, one for each RayCluster
    Service         the head's Ray Jobs API and the driver's control protocol
    NetworkPolicy   only the job's own pods and the operator reach its pods, and Prometheus the driver's metrics
    RayCluster      head without slots; groups `workers`, or `trainer` and `rollout`

All of them are owned by the job, so they go with it, also when no operator runs.
"""

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from rljob_api.control import DRIVER_LOG, TOKEN_VARIABLE
from rljob_api.sections import Device, Spec
from rljob_api.topology import GPU, REST, Node, topology
from rljob_operator.identity import (
    API_VERSION,
    CONTROL_PORT,
    DASHBOARD_PORT,
    GROUP,
    JOB_LABEL,
    KIND,
    MANAGED_BY,
    METRICS_PORT,
    METRICS_PORT_NAME,
    RAY_CLUSTER_LABEL,
    RAY_NODE_TYPE_LABEL,
    Manifest,
    job_name,
    service_name,
)
from rljob_operator.pods import ENVIRONMENT, container_security, pod_security, scratch
from rljob_operator.rollout_pods import GROUP as ROLLOUT
from rljob_operator.rollout_pods import RolloutPods, can_scale
from rljob_operator.world import Defaults, Job, Storage

RAY_VERSION = "2.60.0"
"""of the trainer's lock; KubeRay asks for it"""
SPEC_ANNOTATION = f"{GROUP}/spec"
"""on a RayCluster: digest of what it was built from. A job whose spec has another one needs another cluster"""
TOKEN_KEY = "token"
CACHE_VARIABLE = "RLJOB_CACHE"
MANIFEST_KEY = "manifest.yaml"
MANIFEST_DIRECTORY = "/etc/rljob"
OPERATOR_LABELS = {"app.kubernetes.io/name": "rljob-operator"}
"""on the operator's own pods, which the NetworkPolicy lets in"""
STORAGE = "rljob-storage"


def secret(job: Job, token: str) -> Manifest:
    """Return the Secret with the control token; it is made once and never changed."""
    name = job_name(job.name, job.uid)
    return _owned(job, "v1", "Secret", name) | {"immutable": True, "stringData": {TOKEN_KEY: token}}


def decoded(data: str) -> str:
    """Return what a Secret's field holds."""
    return base64.b64decode(data).decode()


def children(job: Job, cluster: str, spec: Spec, defaults: Defaults, pods: RolloutPods) -> tuple[Manifest, ...]:
    """Return the children besides the Secret that a job needs to train on the RayCluster of this name.

    `pods` are those of the rollout now, where engines have pods of their own.
    """
    return (
        configmap(job, cluster),
        service(job, cluster),
        network_policy(job, spec, defaults),
        raycluster(job, cluster, spec, defaults, pods),
    )


def configmap(job: Job, cluster: str) -> Manifest:
    # JSON is YAML, and with sorted keys always the same text. Not immutable: what may change in flight reaches the next
    # attempt on the same cluster.
    text = json.dumps(job.manifest, sort_keys=True, indent=1, ensure_ascii=False)
    return _owned(job, "v1", "ConfigMap", cluster) | {"data": {MANIFEST_KEY: text}}


def service(job: Job, cluster: str) -> Manifest:
    ports = [("dashboard", DASHBOARD_PORT), ("control", CONTROL_PORT)]
    return _owned(job, "v1", "Service", service_name(job.name, job.uid)) | {
        "spec": {
            "selector": {RAY_CLUSTER_LABEL: cluster, RAY_NODE_TYPE_LABEL: "head"},
            "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports],
        }
    }


def network_policy(job: Job, spec: Spec, defaults: Defaults) -> Manifest:
    mine = {"matchLabels": {JOB_LABEL: job.name}}
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": OPERATOR_LABELS}}
    ports = [{"port": port, "protocol": "TCP"} for port in (DASHBOARD_PORT, CONTROL_PORT)]
    ingress: list[Manifest] = [{"from": [{"podSelector": mine}]}, {"from": [operator], "ports": ports}]
    if defaults.scrapers is not None:
        scrapers = {"matchLabels": dict(defaults.scrapers)} if defaults.scrapers else {}
        scraped = {"port": metrics_port(spec), "protocol": "TCP"}
        ingress.append({"from": [{"namespaceSelector": scrapers}], "ports": [scraped]})
    return _owned(job, "networking.k8s.io/v1", "NetworkPolicy", job_name(job.name, job.uid)) | {
        "spec": {
            "podSelector": mine,
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        }
    }


def raycluster(job: Job, cluster: str, spec: Spec, defaults: Defaults, pods: RolloutPods) -> Manifest:
    child = _owned(job, "ray.io/v1", "RayCluster", cluster)
    child["metadata"]["annotations"] = {SPEC_ANNOTATION: digest(job)}
    return child | {
        "spec": {
            "rayVersion": RAY_VERSION,
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"},
                "template": _head_template(job, cluster, spec, defaults),
            },
            "workerGroupSpecs": [
                _worker_group(job, group, size, pods if group == ROLLOUT else RolloutPods(replicas), spec, defaults)
                for group, size, replicas in worker_groups(spec)
            ],
        }
    }


def worker_groups(spec: Spec) -> tuple[tuple[str, int, int], ...]:
    """Return (name, slots of a pod, pods) of each worker group.

    All pods of a group are alike, so a last node with fewer slots than the others becomes a group of its own.
    """
    groups: dict[str, list[Node]] = {}
    for node in topology(spec).nodes:
        groups.setdefault(node.group, []).append(node)
    found = []
    for name, nodes in groups.items():
        size = nodes[0].gpus
        full = sum(node.gpus == size for node in nodes)
        found.append((name, size, full))
        found.extend((f"{name}{REST}", node.gpus, 1) for node in nodes if node.gpus != size)
    return tuple(found)


def num_rollout_pods(spec: Spec) -> int:
    """Return the number of pods of the group `rollout`; 0: engines have no pods of their own."""
    return sum(pods for group, _, pods in worker_groups(spec) if group == ROLLOUT)


def num_pods(spec: Spec) -> int:
    """Return the number of pods of the job's RayCluster, head included."""
    return 1 + sum(pods for _, _, pods in worker_groups(spec))


def entrypoint(job: Job, attempt: int, spec: Spec, defaults: Defaults) -> str:
    """Return the command line of the driver, for a shell on the head."""
    where = directory(job, spec, defaults)
    log = f"{where}/{DRIVER_LOG.format(attempt=attempt)}"
    first = "--preflight " if attempt == 1 else ""  # a later one goes on with what has been looked at
    # exec: the exit code that Ray sees is then the driver's own, also after a signal.
    return (
        f"exec python -m rljob_trainer.driver --manifest {MANIFEST_DIRECTORY}/{MANIFEST_KEY} "
        f"--directory {shlex.quote(where)} --origin {job.uid} --attempt {attempt} {first}--log {shlex.quote(log)} "
        # The manifest is mounted, and a kubelet brings changes of it up to minutes late.
        f"--engines {spec.rollout.engines} --listen 0.0.0.0:{CONTROL_PORT} --metrics-port {METRICS_PORT}"
    )


def metrics_port(spec: Spec) -> int:
    """Return the port of the driver's metrics, on the head."""
    return spec.runtime.metrics_port or METRICS_PORT


def directory(job: Job, spec: Spec, defaults: Defaults) -> str:
    """Return the run's directory inside the pods."""
    if spec.checkpoint.directory is None and defaults.storage:
        return f"{defaults.storage.path}/{job.namespace}/{job_name(job.name, job.uid)}"
    return spec.checkpoint.directory or f"runs/{job.name}"


def cache(job: Job, spec: Spec, defaults: Defaults) -> str:
    """Return where the driver puts a model that it converts: learners and engines read it from their own pods."""
    storage = _storage(spec, defaults)
    return f"{storage.path if storage else directory(job, spec, defaults)}/cache"


def is_shared(path: str, spec: Spec, defaults: Defaults) -> bool:
    """Return whether a directory lies in a volume that all pods of the job mount."""
    mounts = [str(mount.get("mountPath")) for mount in _volume_mounts(spec, defaults)]
    return any(PurePosixPath(path).is_relative_to(mount) for mount in mounts)


def digest(job: Job) -> str:
    """Return a digest of what a cluster is built from: all of the spec but what the operator itself acts on.

    The number of engines does not count as long as the pods have the same sizes.
    """
    assert job.spec is not None, "a manifest with problems is not admitted"
    built_from = {key: value for key, value in job.manifest["spec"].items() if key != "recovery"}
    sizes = [(group, size) for group, size, _ in worker_groups(job.spec)]
    if can_scale(job.spec):
        built_from["rollout"] = {key: value for key, value in built_from["rollout"].items() if key != "engines"}
    scheduling = dict(built_from.pop("scheduling", {}))
    for live in ("suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        scheduling.pop(live, None)
    text = json.dumps([built_from, scheduling, sizes], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_built_for(cluster: Manifest, job: Job) -> bool:
    """Return whether a RayCluster was built from what the job's spec says now."""
    annotations: dict[str, str] = cluster["metadata"].get("annotations", {})
    return annotations.get(SPEC_ANNOTATION) == digest(job)


def contains(there: object, wanted: object) -> bool:
    """Return whether an object holds all that we want of it; what others have added does not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(
            key in there and contains(there[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(there, list)
            and len(there) == len(wanted)
            and all(contains(a, b) for a, b in zip(there, wanted, strict=True))
        )
    return there == wanted


def _owned(job: Job, api_version: str, kind: str, name: str) -> Manifest:
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {JOB_LABEL: job.name, **MANAGED_BY},
            "ownerReferences": [owner],
        },
    }


def _head_template(job: Job, cluster: str, spec: Spec, defaults: Defaults) -> Manifest:
    token = {"secretKeyRef": {"name": job_name(job.name, job.uid), "key": TOKEN_KEY}}
    ports = {"gcs-server": 6379, "dashboard": DASHBOARD_PORT, "client": 10001, "control": CONTROL_PORT}
    ports[METRICS_PORT_NAME] = metrics_port(spec)
    template = _template(job, "ray-head", spec.runtime.head_resources or defaults.head_resources, spec, defaults)
    container = template["spec"]["containers"][0]
    container["env"].append({"name": TOKEN_VARIABLE, "valueFrom": token})
    if CACHE_VARIABLE not in spec.runtime.env:
        container["env"].append({"name": CACHE_VARIABLE, "value": cache(job, spec, defaults)})
    container["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    container["volumeMounts"].append({"name": "rljob-manifest", "mountPath": MANIFEST_DIRECTORY, "readOnly": True})
    template["spec"]["volumes"].append({"name": "rljob-manifest", "configMap": {"name": cluster}})
    return template


def _worker_group(job: Job, group: str, size: int, pods: RolloutPods, spec: Spec, defaults: Defaults) -> Manifest:
    on_cpu = spec.runtime.device is Device.CPU
    resources = spec.runtime.worker_resources or defaults.worker_resources
    template = _template(job, "ray-worker", resources if on_cpu else with_gpus(resources, size), spec, defaults)
    return {
        "groupName": group,
        "replicas": pods.replicas,
        "minReplicas": pods.replicas,
        "maxReplicas": pods.replicas,
        # Named and counted in one write: otherwise KubeRay would choose who goes.
        "scaleStrategy": {"workersToDelete": list(pods.leaving)},
        # On Cpu a slot is a process, and Ray is told how many there are; GPUs it finds itself.
        "rayStartParams": {"num-cpus": str(size)} if on_cpu else {},
        "template": template,
    }


def with_gpus(resources: Mapping[str, Any], gpus: int) -> Manifest:
    """Return a container's resources with so many GPUs."""
    counted = {kind: {**resources.get(kind, {}), GPU: str(gpus)} for kind in ("limits", "requests")}
    return {**resources, **counted}


def _template(job: Job, container: str, resources: Mapping[str, Any], spec: Spec, defaults: Defaults) -> Manifest:
    """Return a pod template, freshly made: callers add to it."""
    runtime, scheduling = spec.runtime, spec.scheduling
    mounts = _volume_mounts(spec, defaults)
    scratch_volumes, scratch_mounts = scratch(mounts)
    pod: Manifest = {
        # Nothing in the job talks to the API server.
        "automountServiceAccountToken": False,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": container,
                "image": runtime.image or defaults.image,
                "imagePullPolicy": runtime.image_pull_policy,
                "env": [{"name": name, "value": value} for name, value in {**ENVIRONMENT, **runtime.env}.items()],
                "securityContext": container_security(),
                "volumeMounts": [*mounts, *scratch_mounts],
            }
        ],
        "volumes": [*_volumes(spec, defaults), *scratch_volumes],
    }
    if resources:
        pod["containers"][0]["resources"] = dict(resources)
    if runtime.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in runtime.image_pull_secrets]
    if scheduling.node_selector:
        pod["nodeSelector"] = dict(scheduling.node_selector)
    if scheduling.tolerations:
        pod["tolerations"] = list(scheduling.tolerations)
    if scheduling.priority_class_name:
        pod["priorityClassName"] = scheduling.priority_class_name
    return {"metadata": {"labels": {JOB_LABEL: job.name, **MANAGED_BY}}, "spec": pod}


def _volumes(spec: Spec, defaults: Defaults) -> tuple[Mapping[str, Any], ...]:
    storage = _storage(spec, defaults)
    return (*spec.runtime.volumes, *([{"name": STORAGE, **storage.source}] if storage else []))


def _volume_mounts(spec: Spec, defaults: Defaults) -> tuple[Mapping[str, Any], ...]:
    storage = _storage(spec, defaults)
    return (*spec.runtime.volume_mounts, *([{"name": STORAGE, "mountPath": storage.path}] if storage else []))


def _storage(spec: Spec, defaults: Defaults) -> Storage | None:
    return defaults.storage if spec.checkpoint.directory is None else None
