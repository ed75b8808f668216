"""The pods of a RayCluster with what schedulers and quotas look at, and nothing else. Pure.

A review in the webhook counts pods without building them: `children.raycluster` takes five times as long, and its pods
have the same resources, node selectors, tolerations and priority.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.sections import Device
from rljob_api.sizing.topology import gpu_resource
from rljob_operator.identity import HEAD_CONTAINER, WORKER_CONTAINER, Manifest
from rljob_operator.job import storage
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import is_of_engines, worker_groups
from rljob_operator.job.pod_roles import HEAD, Role, role_of, with_role
from rljob_operator.job.pods import container_security, scheduled


def sized_pods(job: AdmittedJob) -> Iterator[tuple[str, int, Manifest]]:
    """Yield (group, pods, the spec of one) of the head and of each worker group, for all engines of the spec."""
    yield HEAD, 1, _sized(job, HEAD, HEAD_CONTAINER, head_resources(job))
    for group, size, replicas in worker_groups(job.spec):
        pod = _sized(job, worker_role(group), WORKER_CONTAINER, worker_resources(job, group, size))
        yield group, replicas, pod


def worker_role(group: str) -> Role:
    """Return the role of the pods of a worker group."""
    return "rollout" if is_of_engines(group) else "trainer"


def head_resources(job: AdmittedJob) -> Mapping[str, Any]:
    """Return the resources of the head's container; empty: none are named."""
    return role_of(job.spec, HEAD).resources or job.resolved.head_resources or {}


def worker_resources(job: AdmittedJob, group: str, size: int) -> Mapping[str, Any]:
    """Return the resources of the container of a pod of a worker group, which has `size` slots."""
    named = role_of(job.spec, worker_role(group)).resources or job.resolved.worker_resources or {}
    return named if job.spec.runtime.device is Device.CPU else with_gpus(named, gpu_resource(job.spec), size)


def with_gpus(resources: Mapping[str, Any], resource: str, gpus: int) -> Manifest:
    """Return a container's resources with this many GPUs, for which `resource` stands."""
    counted = {kind: {**resources.get(kind, {}), resource: str(gpus)} for kind in ("limits", "requests")}
    return {**resources, **counted}


def _sized(job: AdmittedJob, role: Role, name: str, resources: Mapping[str, Any]) -> Manifest:
    container = {"name": name, "resources": resources, "securityContext": container_security()}
    pod = {"containers": [container], "initContainers": list(storage.first_containers(job)), **scheduled(job.spec)}
    # Names of the RayCluster and of the group stand in affinities alone.
    found: Manifest = with_role({"metadata": {}, "spec": pod}, job.spec, role, cluster="", group="")["spec"]
    return found
