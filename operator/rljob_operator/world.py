"""What the operator knows when it decides: one job, and all that belongs to it. Values only.

`job_of` and `pod_of` read objects of the API server; everything else is made by `cache.py` and `drivers.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from rljob_api import control
from rljob_api.errors import ManifestError, Problem
from rljob_api.manifest import parse
from rljob_api.sections import Spec
from rljob_operator.identity import RAY_CLUSTER_LABEL, RAY_GROUP_LABEL, RAY_NODE_TYPE_LABEL, Manifest


@dataclass(frozen=True, slots=True)
class Job:
    """An RLJob."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    spec: Spec | None
    """None: the manifest breaks a rule, see `problems`"""
    problems: tuple[Problem, ...]
    manifest: Manifest
    """what the driver reads: the object without what the API server adds"""
    status: Manifest
    """as it was written last; this is the operator's whole memory of the job"""
    is_deleting: bool = False

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of the job."""

    name: str
    cluster: str
    is_head: bool
    is_ready: bool
    is_deleting: bool
    trouble: str | None
    """why it is not ready, in the words of the scheduler or the kubelet; None: no reason is known"""
    group: str = ""
    """name of its worker group; the head's does not matter"""
    ip: str | None = None
    """None: it has none yet"""


class DriverState(StrEnum):
    """What Ray says about the driver of an attempt."""

    UNKNOWN = "Unknown"
    """Ray does not answer, or has not been asked"""
    ABSENT = "Absent"
    """Ray answers, and knows no such driver"""
    PENDING = "Pending"
    RUNNING = "Running"
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


SILENT_S = 20.0
"""without an answer of Ray before its last one counts no more [s]"""
ALIVE = (DriverState.PENDING, DriverState.RUNNING)
ENDED = (DriverState.STOPPED, DriverState.SUCCEEDED, DriverState.FAILED)


@dataclass(frozen=True, slots=True)
class Driver:
    """What is known of the driver of one attempt."""

    submission_id: str
    since: float
    """when the operator began to look [unix s]"""
    state: DriverState = DriverState.UNKNOWN
    exit_code: int | None = None
    message: str = ""
    """of Ray, when it has ended"""
    status: control.Status | None = None
    """what it says about itself; None: it has not answered"""
    beat_at: float = 0.0
    """when the operator last saw a sign of life; 0: never [unix s]"""
    is_stopping: bool = False
    """whether Ray has accepted to end it"""


@dataclass(frozen=True, slots=True)
class Storage:
    """A volume that all pods of a job can write to, for jobs that name none."""

    source: Mapping[str, Any]
    """as in a pod's `spec.volumes`, without the name"""
    path: str = "/rljob"
    """where it is mounted"""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the operator gives to jobs that do not say."""

    image: str | None = None
    storage: Storage | None = None
    scrapers: Mapping[str, str] | None = None
    """labels of the namespaces whose pods may read the driver's metrics; empty: all, None: none"""
    head_resources: Mapping[str, Any] = field(default_factory=dict)
    """as in a container's `resources`"""
    worker_resources: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """What there is of one job in the cluster."""

    children: tuple[Manifest, ...] = ()
    """ConfigMaps, Services, NetworkPolicies and RayClusters that carry the job's label and are owned by it"""
    pods: tuple[Pod, ...] = ()
    driver: Driver | None = None
    has_secret: bool = False
    fresh_token: str = field(default="", repr=False)
    """random; becomes the control token if the job has none"""
    defaults: Defaults = Defaults()
    refused: str | None = None
    """what the API server said about a child that it did not take; None: it took all, or has not been asked"""
    progress_due_at: float = 0.0
    """when nothing but progress may be written into the status again, as far as this process knows [unix s]"""

    def child(self, kind: str, name: str) -> Manifest | None:
        """Return the child of this kind and name."""
        return next((c for c in self.children if c["kind"] == kind and c["metadata"]["name"] == name), None)

    def rayclusters(self) -> tuple[Manifest, ...]:
        return tuple(child for child in self.children if child["kind"] == "RayCluster")

    def pods_of(self, cluster: str) -> tuple[Pod, ...]:
        """Return the pods of a RayCluster that are not on their way out."""
        return tuple(pod for pod in self.pods if pod.cluster == cluster and not pod.is_deleting)


def is_deleting(child: Manifest) -> bool:
    return "deletionTimestamp" in child["metadata"]


def job_of(raw: Manifest) -> Job:
    """Return the job that an object of the API server describes; never raises for what its author wrote."""
    metadata = raw["metadata"]
    manifest = {
        "apiVersion": raw["apiVersion"],
        "kind": raw["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": raw.get("spec", {}),
    }
    spec, problems = _parsed(manifest)
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        resource_version=metadata.get("resourceVersion", ""),
        spec=spec,
        problems=problems,
        manifest=manifest,
        status=raw.get("status", {}),
        is_deleting=is_deleting(raw),
    )


def _parsed(manifest: Manifest) -> tuple[Spec | None, tuple[Problem, ...]]:
    try:
        return parse(manifest).spec, ()
    except ManifestError as error:
        return None, error.problems


def pod_of(raw: Manifest) -> Pod:
    """Return what matters of a pod."""
    labels, status = raw["metadata"].get("labels", {}), raw.get("status", {})
    ready = _condition(status, "Ready")
    return Pod(
        name=raw["metadata"]["name"],
        cluster=labels.get(RAY_CLUSTER_LABEL, ""),
        is_head=labels.get(RAY_NODE_TYPE_LABEL) == "head",
        is_ready=ready.get("status") == "True",
        is_deleting=is_deleting(raw),
        trouble=_trouble(status),
        group=labels.get(RAY_GROUP_LABEL, ""),
        ip=status.get("podIP"),
    )


def _trouble(status: Manifest) -> str | None:
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason"))
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for container in containers:
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return f"{waiting['reason']}: {waiting.get('message', '')}".removesuffix(": ")
    if status.get("phase") == "Failed":
        return str(status.get("message") or status.get("reason") or "the pod has failed")
    return None


def _condition(status: Manifest, kind: str) -> Manifest:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def seconds(text: str) -> float:
    """Return an RFC 3339 time as unix seconds."""
    return datetime.fromisoformat(text).timestamp()
