"""The children that a job should have. Pure: from the spec to complete, reproducible manifests.

    Secret          control token, derived from the operator's key
    ConfigMap       the manifest that the driver reads, one for each RayCluster
    Service         the head's Ray Jobs API and the driver's control protocol
    NetworkPolicy   lets only the job's own pods and the operator reach its pods, and Prometheus the driver's metrics
    StatefulSet     pods for tools, with their own Service and NetworkPolicy (`tool_pods.py`); or Sandboxes
    RayCluster      head without slots; groups `workers`, or `trainer` and `rollout`

The job owns all of them, so they are deleted with it, also when no operator runs.
"""

import base64
import json
import shlex
from collections.abc import Mapping
from typing import Any

from rljob_api.adjustments import VARIABLE, Adjustments, written
from rljob_api.control import DRIVER_LOG, TOKEN_VARIABLE, eviction_token, ray_token
from rljob_api.sections import Device, Spec
from rljob_api.sizing.topology import GPU, gpu_resource
from rljob_api.tool_protocol import digest, tools_token
from rljob_operator.children.configmaps import MANIFEST_KEY, digested
from rljob_operator.children.metadata import owned
from rljob_operator.children.rollout_pods import RolloutPods
from rljob_operator.children.sized_pods import head_resources, worker_resources, worker_role
from rljob_operator.children.tool_pods import (
    OWNERS,
    driver_variable,
    is_current,
    others_selector,
    pods_selector,
    ports,
    tool_children,
)
from rljob_operator.identity import (
    ATTEMPT_ANNOTATION,
    CONTROL_PORT,
    DASHBOARD_PORT,
    HEAD_CONTAINER,
    JOB_LABEL,
    KEY_ANNOTATION,
    MANAGED_BY,
    METRICS_PORT,
    METRICS_PORT_NAME,
    RAY_CLUSTER_LABEL,
    RAY_NODE_TYPE_LABEL,
    RAY_TOKEN_KEY,
    SPEC_ANNOTATION,
    TOOL_POD_OWNER_ANNOTATION,
    TOOLS_DIGEST_KEY,
    WORKER_CONTAINER,
    ClusterRef,
    Manifest,
    job_name,
    service_name,
)
from rljob_operator.job import pods as pod_parts
from rljob_operator.job import storage
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import ROLLOUT, is_of_engines, worker_groups
from rljob_operator.job.node_limits import without_nodes
from rljob_operator.job.pod_roles import HEAD, with_role
from rljob_operator.job.pods import ENVIRONMENT, container_security, pod_security, scratch
from rljob_operator.world.kueue import PRIORITY_LABEL, QUEUE_LABEL
from rljob_operator.world.silent_nodes import bounded

RAY_VERSION = "2.60.0"
"""of the trainer's lock; KubeRay asks for it"""
TOKEN_KEY = "token"
EVICTION_TOKEN_KEY = "evictionToken"
CACHE_VARIABLE = "RLJOB_CACHE"
MANIFEST_DIRECTORY = "/etc/rljob"
ONLY_FOR_OPERATOR = ("pods", "suspend", "managedBy")
ONLY_FOR_OPERATOR_IN = (
    ("recovery", "resumes"),
    ("recovery", "adjustMemory"),
    ("checkpoint", "ttlSecondsAfterDeletion"),
    ("scheduling", "queue"),
    ("scheduling", "queuePriorityClass"),
)
"""parts of a spec, and (section, field), that no driver reads"""
OPERATOR_LABELS = {"app.kubernetes.io/name": "rljob-operator"}
"""on the operator's own pods, which the NetworkPolicy lets in"""
DNS_NAMESPACE = "kube-system"
"""of the cluster's DNS"""


def secret(job: AdmittedJob, token: str, key: str | None = None) -> Manifest:
    """Return the Secret with the control token and what is derived from it; it is replaced, never changed.

    `key` is the id of the operator's key of this token; None: an older operator made it at random.
    """
    tokens = {
        TOKEN_KEY: token,
        EVICTION_TOKEN_KEY: eviction_token(token),
        RAY_TOKEN_KEY: ray_token(token),
        TOOLS_DIGEST_KEY: digest(tools_token(token)),
    }
    return owned(job, "v1", "Secret", job.secret_name(key)) | {"immutable": True, "stringData": tokens}


def decoded(data: str) -> str:
    """Return the value of a Secret's field."""
    return base64.b64decode(data).decode()


def children(job: AdmittedJob, cluster: ClusterRef, attempt: int, pods: RolloutPods) -> tuple[Manifest, ...]:
    """Return all children except the Secret, for this attempt on this RayCluster.

    `pods` is the size of the rollout group now, where engines have separate pods.
    """
    return (
        configmap(job, cluster.name),
        service(job, cluster.name, attempt),
        network_policy(job),
        *tool_children(job, cluster),
        raycluster(job, cluster, pods),
    )


def around(job: AdmittedJob, cluster: str, attempt: int) -> tuple[Manifest, ...]:
    """Return the children that any RayCluster of this name needs around it, whichever spec built it."""
    return service(job, cluster, attempt), network_policy(job)


def configmap(job: AdmittedJob, cluster: str) -> Manifest:
    # JSON is YAML, and with sorted keys always the same text. Not immutable: what may change in flight reaches the next
    # attempt on the same cluster.
    text = json.dumps(for_driver(job.manifest), sort_keys=True, indent=1, ensure_ascii=False)
    return owned(job, "v1", "ConfigMap", cluster) | {"data": {MANIFEST_KEY: text}}


def for_driver(manifest: Manifest) -> Manifest:
    """Return the manifest without what only the operator acts on: the driver of an older image may not know it."""
    spec = {key: value for key, value in manifest["spec"].items() if key not in ONLY_FOR_OPERATOR}
    for section, field in ONLY_FOR_OPERATOR_IN:
        if field in spec.get(section, {}):
            spec[section] = {key: value for key, value in spec[section].items() if key != field}
    return {**manifest, "spec": spec}


def service(job: AdmittedJob, cluster: str, attempt: int) -> Manifest:
    child = owned(job, "v1", "Service", service_name(job.name, job.uid))
    child["metadata"]["annotations"] = {ATTEMPT_ANNOTATION: str(attempt)}
    ports = [("dashboard", DASHBOARD_PORT), ("control", CONTROL_PORT)]
    return child | {
        "spec": {
            "selector": {RAY_CLUSTER_LABEL: cluster, RAY_NODE_TYPE_LABEL: "head"},
            "ports": [{"name": name, "port": port, "targetPort": port, "protocol": "TCP"} for name, port in ports],
        }
    }


def network_policy(job: AdmittedJob) -> Manifest:
    mine = others_selector(job)
    operator = {**_namespace(job.defaults.operator_namespace), "podSelector": {"matchLabels": OPERATOR_LABELS}}
    own = [{"port": port, "protocol": "TCP"} for port in (DASHBOARD_PORT, CONTROL_PORT)]
    ingress: list[Manifest] = [{"from": [{"podSelector": mine}]}, {"from": [operator], "ports": own}]
    if job.defaults.scrapers is not None:
        scrapers = {"matchLabels": dict(job.defaults.scrapers)} if job.defaults.scrapers else {}
        scraped = {"port": metrics_port(job.spec), "protocol": "TCP"}
        ingress.append({"from": [{"namespaceSelector": scrapers}], "ports": [scraped]})
    spec: Manifest = {"podSelector": mine, "policyTypes": ["Ingress"], "ingress": ingress}
    if job.defaults.egress is not None:
        dns = {"to": [_namespace(DNS_NAMESPACE)], "ports": [{"port": 53, "protocol": each} for each in ("UDP", "TCP")]}
        spec["policyTypes"] = ["Ingress", "Egress"]
        tools = {"to": [{"podSelector": pods_selector(job)}], "ports": ports()}
        spec["egress"] = [{"to": [{"podSelector": mine}]}, tools, dns, *job.defaults.egress]
    return owned(job, "networking.k8s.io/v1", "NetworkPolicy", job_name(job.name, job.uid)) | {"spec": spec}


def _namespace(name: str) -> Manifest:
    """Return the part of a NetworkPolicy's peer that selects a namespace by its name; the API server sets the label."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def raycluster(job: AdmittedJob, cluster: ClusterRef, pods: RolloutPods) -> Manifest:
    child = owned(job, "ray.io/v1", "RayCluster", cluster.name)
    child["metadata"]["annotations"] = {SPEC_ANNOTATION: job.digest}
    if cluster.token_key is not None:
        child["metadata"]["annotations"][KEY_ANNOTATION] = cluster.token_key
    if job.resolved.tool_pod_owner is not None:
        child["metadata"]["annotations"][TOOL_POD_OWNER_ANNOTATION] = str(job.resolved.tool_pod_owner)
    child["metadata"]["labels"] |= job.scheduler_labels
    scheduling = job.spec.scheduling
    queueing = {QUEUE_LABEL: scheduling.queue, PRIORITY_LABEL: scheduling.queue_priority_class}
    child["metadata"]["labels"].update({label: name for label, name in queueing.items() if name is not None})
    return child | {
        "spec": {
            "rayVersion": RAY_VERSION,
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "0.0.0.0"},
                "template": _head_template(job, cluster),
            },
            "workerGroupSpecs": [
                _worker_group(job, cluster, (group, size), pods if group == ROLLOUT else RolloutPods(replicas))
                for group, size, replicas in worker_groups(job.spec)
            ],
        }
    }


def entrypoint(job: AdmittedJob, cluster: str, attempt: int, adjustments: Adjustments) -> str:
    """Return the command line of the driver, for a shell on the head of the RayCluster of this name."""
    variables = {**({VARIABLE: written(adjustments)} if adjustments else {}), **driver_variable(job, cluster)}
    settings = "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items())
    adjusts = f"env {settings}" if settings else ""
    where = storage.directory(job)
    log = f"{where}/{DRIVER_LOG.format(attempt=attempt)}"
    first = "--preflight " if attempt == 1 else ""  # later attempts have been checked already
    # exec: Ray then sees the driver's own exit code, also after a signal.
    return (
        f"exec {adjusts}python -m rljob_trainer.driver --manifest {MANIFEST_DIRECTORY}/{MANIFEST_KEY} "
        f"--directory {shlex.quote(where)} --origin {job.uid} --attempt {attempt} {first}--log {shlex.quote(log)} "
        # The manifest is mounted, and a kubelet updates it up to minutes late.
        f"--engines {job.spec.rollout.engines} --listen 0.0.0.0:{CONTROL_PORT} --metrics-port {METRICS_PORT}"
    )


def metrics_port(spec: Spec) -> int:
    """Return the port of the driver's metrics, on the head."""
    return spec.runtime.metrics_port or METRICS_PORT


def is_as_wanted(seen: Manifest, wanted: Manifest) -> bool:
    """Return whether a child has all that we want."""
    if wanted["kind"] in OWNERS:
        return is_current(seen, wanted)
    if wanted["kind"] == "ConfigMap":
        return contains(digested(seen), digested(wanted))
    return contains(seen, wanted)


def contains(there: object, wanted: object) -> bool:
    """Return whether an object has all fields that we want; fields that others added do not matter."""
    if there == wanted:
        return True  # most parts of most objects: one comparison in C, instead of one call for each value in them
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
    return False


def _head_template(job: AdmittedJob, cluster: ClusterRef) -> Manifest:
    token = {"secretKeyRef": {"name": job.secret_name(cluster.token_key), "key": TOKEN_KEY}}
    ports = {"gcs-server": 6379, "dashboard": DASHBOARD_PORT, "client": 10001, "control": CONTROL_PORT}
    ports[METRICS_PORT_NAME] = metrics_port(job.spec)
    template = _template(job, cluster, HEAD_CONTAINER, head_resources(job))
    container = template["spec"]["containers"][0]
    container["env"].append({"name": TOKEN_VARIABLE, "valueFrom": token})
    if CACHE_VARIABLE not in job.spec.runtime.env:
        container["env"].append({"name": CACHE_VARIABLE, "value": storage.cache(job)})
    container["lifecycle"] = _eviction_hook(job, has_only_engines=False)
    container["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    container["volumeMounts"].append({"name": "rljob-manifest", "mountPath": MANIFEST_DIRECTORY, "readOnly": True})
    template["spec"]["volumes"].append({"name": "rljob-manifest", "configMap": {"name": cluster.name}})
    return _bounded(with_role(template, job.spec, HEAD, cluster.name, ""), job, cluster)


def _worker_group(job: AdmittedJob, cluster: ClusterRef, shape: tuple[str, int], pods: RolloutPods) -> Manifest:
    """Return a worker group; `shape` is its name and the slots of each of its pods."""
    group, size = shape
    on_cpu, gpu = job.spec.runtime.device is Device.CPU, gpu_resource(job.spec)
    template = _template(job, cluster, WORKER_CONTAINER, worker_resources(job, group, size))
    container = template["spec"]["containers"][0]
    container["env"].append(pod_parts.eviction_token(job.secret_name(cluster.token_key), EVICTION_TOKEN_KEY))
    container["lifecycle"] = _eviction_hook(job, has_only_engines=is_of_engines(group))
    return {
        "groupName": group,
        "replicas": pods.replicas,
        "minReplicas": pods.replicas,
        "maxReplicas": pods.replicas,
        # Named and counted in one write: otherwise KubeRay would choose which pods to delete.
        "scaleStrategy": {"workersToDelete": list(pods.leaving)},
        "rayStartParams": _ray_slots(on_cpu, gpu, size),
        "template": _bounded(with_role(template, job.spec, worker_role(group), cluster.name, group), job, cluster),
    }


def _ray_slots(on_cpu: bool, gpu: str, size: int) -> Manifest:
    """Return the number of slots where Ray and KubeRay would not find it: of processes, and of GPUs by other names."""
    if on_cpu:
        return {"num-cpus": str(size)}
    return {} if gpu == GPU else {"num-gpus": str(size)}


def _eviction_hook(job: AdmittedJob, has_only_engines: bool) -> Manifest:
    grace_s = min(job.spec.scheduling.termination_grace_period_seconds, int(job.defaults.longest_drain_s))
    return pod_parts.eviction_hook(grace_s, has_only_engines)


def _bounded(template: Manifest, job: AdmittedJob, cluster: ClusterRef) -> Manifest:
    """Return a pod template whose pods end in time, because another job may wait for their room. They are on no node
    that the RayCluster avoids, and do not stay on a silent one.
    """
    pod = without_nodes(template["spec"], cluster.avoids)
    pod = {**pod, "tolerations": bounded(pod.get("tolerations") or (), job.defaults.lost_pod_s)}
    grace_s, longest_s = pod.get("terminationGracePeriodSeconds"), int(job.defaults.longest_drain_s)
    if isinstance(grace_s, int) and grace_s > longest_s:
        pod = {**pod, "terminationGracePeriodSeconds": longest_s}
    return {**template, "spec": pod}


def _template(job: AdmittedJob, cluster: ClusterRef, container: str, resources: Mapping[str, Any]) -> Manifest:
    """Return a new pod template; callers add to it."""
    runtime, scheduling = job.spec.runtime, job.spec.scheduling
    mounts = storage.volume_mounts(job)
    scratch_volumes, scratch_mounts = scratch(mounts)
    pod: Manifest = {
        # Nothing in the job uses the API server.
        "automountServiceAccountToken": False,
        # The first process of a PID namespace ignores SIGTERM unless it handles it. KubeRay's shell that waits for the
        # head, and `ray start` until it is up, do not: a starting pod would stay for its whole grace period.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": scheduling.termination_grace_period_seconds,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": container,
                "image": job.resolved.image,
                "imagePullPolicy": runtime.image_pull_policy,
                "env": [pod_parts.variable(*each) for each in {**ENVIRONMENT, **runtime.env}.items()],
                "securityContext": container_security(),
                "volumeMounts": [*mounts, *scratch_mounts],
                # The pod's status then has the end of the log of a container that crashes: its log may be lost.
                "terminationMessagePolicy": "FallbackToLogsOnError",
                **pod_parts.probes(),
            }
        ],
        "volumes": [*storage.volumes(job), *scratch_volumes],
    }
    if cluster.has_ray_token and pod_parts.RAY_MODE_VARIABLE not in runtime.env:
        secret_name = job.secret_name(cluster.token_key)
        pod["containers"][0]["env"].extend(pod_parts.ray_authentication(secret_name, RAY_TOKEN_KEY))
    if first := storage.first_containers(job):
        pod["initContainers"] = list(first)
    if resources:
        pod["containers"][0]["resources"] = dict(resources)
    pod |= pod_parts.scheduled(job.spec)
    return {"metadata": {"labels": {JOB_LABEL: job.name, **MANAGED_BY}}, "spec": pod}
