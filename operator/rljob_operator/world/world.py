"""The observed state on which the operator decides: one job, and all that belongs to it. Values only.

`job_of` and `pod_of` read objects of the API server; everything else is made by `cache.py` and `drivers.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from rljob_api import control
from rljob_api.errors import ABSENT, UNREADABLE, ManifestError, Problem
from rljob_api.foreign_text import said
from rljob_api.known_failure import KnownFailure
from rljob_api.reading import job_status
from rljob_api.reading.lenient import Readable, readable
from rljob_api.reading.manifest import parse
from rljob_api.sections import OUR_MANAGER, Spec
from rljob_api.status import ToolPodOwner
from rljob_operator.identity import (
    RAY_CLUSTER_LABEL,
    RAY_CONTAINERS,
    RAY_GROUP_LABEL,
    RAY_NODE_TYPE_LABEL,
    TOOLS_LABEL,
    Manifest,
    manager,
    scheduler_labels,
)
from rljob_operator.world.kueue import Workload, with_labels
from rljob_operator.world.pace import Pace
from rljob_operator.world.pod_evidence import trouble_of
from rljob_operator.world.pod_stage import PodEvent, PodStage, stage_of
from rljob_operator.world.queue_decision import QueueDecision
from rljob_operator.world.run_claims import Runs
from rljob_operator.world.suspension import was_suspended


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
    """as it was written last, as far as this version can read it: the operator's whole memory of the job"""
    created: str = ""
    """RFC 3339"""
    is_deleting: bool = False
    scheduler_labels: Mapping[str, str] = field(default_factory=dict)
    """labels for a batch scheduler"""
    managed_by: str = OUR_MANAGER
    """the controller that acts on it, also where the manifest breaks a rule"""
    readable: Readable | None = None
    """what can be read of a manifest that is refused although the job has begun; None: nothing, or it is not refused"""
    given_status: Manifest = field(default_factory=dict)
    """the status as it is in the cluster: another version, or a person, may have written what this one cannot read"""

    def is_left_to(self, release: str) -> str | None:
        """Return the other release that the job belongs to; None: it belongs to this one, or to none yet."""
        theirs: str | None = self.status.get("release")
        return None if theirs in (None, release) or "completionTime" in self.status else theirs

    @property
    def has_begun(self) -> bool:
        """Whether the job has had an attempt."""
        return bool(self.status.get("attempts"))

    @property
    def is_ours(self) -> bool:
        """Whether the operator acts on this job, and not another controller."""
        return self.managed_by == OUR_MANAGER

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
    stage: PodStage | None
    """what it waits for, as the scheduler or the kubelet reports it; None: it is ready, or nothing is known"""
    group: str = ""
    """name of its worker group; the head's does not matter"""
    ip: str | None = None
    """None: not assigned yet"""
    created: float = 0.0
    """[unix s]"""
    out_of_memory_at: float | None = None
    """when Ray's container was killed for its memory; None: it was not [unix s]"""
    gone_by: float | None = None
    """when it should have ended, because it was deleted; None: it was not deleted [unix s]"""
    node: str | None = None
    """name of its node; None: the scheduler has not bound it"""
    trouble: tuple[str, ...] = ()
    """what ended or holds back the pod and its containers, a line each"""
    tools_of: str = ""
    """the RayCluster whose driver calls tools in this pod; empty: it is a pod of a RayCluster"""
    deleted_at: float | None = None
    """when it was deleted, or its grace period began [unix s]; None: it was not deleted"""
    disruption: str = ""
    """why Kubernetes ends it, as the reason of its condition DisruptionTarget or of its status; empty: not known"""
    is_on_silent_node: bool = False
    """whether it is not ready because its node is not, and no container has changed"""


class DriverState(StrEnum):
    """What Ray says about the driver of an attempt."""

    UNKNOWN = "Unknown"
    """Ray does not answer, or was not asked yet"""
    ABSENT = "Absent"
    """Ray answers that there is no such driver"""
    PENDING = "Pending"
    RUNNING = "Running"
    STOPPED = "Stopped"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


SILENT_S = 20.0
"""without an answer for this time, the last answer of Ray is outdated [s]"""
ALIVE = (DriverState.PENDING, DriverState.RUNNING)
ENDED = (DriverState.STOPPED, DriverState.SUCCEEDED, DriverState.FAILED)


@dataclass(frozen=True, slots=True)
class Driver:
    """What is known of the driver of one attempt."""

    submission_id: str
    since: float
    """when the operator began to watch it; nothing that Ray answers moves it [unix s]"""
    state: DriverState = DriverState.UNKNOWN
    exit_code: int | None = None
    message: str = ""
    """of Ray, when it has ended"""
    status: control.Status | None = None
    """its own report; None: it has not answered"""
    beat_at: float = 0.0
    """when the operator last saw a sign of life; 0: never [unix s]"""
    is_stopping: bool = False
    """whether Ray has accepted an order to end it"""
    refuses_since: float | None = None
    """since when it refuses the operator's control token; None: it does not [unix s]"""
    refused_at: float = 0.0
    """when it refused the token last; 0: never [unix s]"""
    turned_at: float = 0.0
    """when Ray last began to answer, or ceased to; its owner can move this at will [unix s]"""
    grace: int | None = None
    """answers of Ray after a silence that are still awaited before a driver without a sign of life counts as hung;
    None: there was no silence since its last sign of life"""

    @property
    def turned(self) -> float:
        """When Ray last began to answer, or ceased to, as far as this process knows [unix s]."""
        return max(self.since, self.turned_at)

    def clock(self, now: float) -> float:
        """Return what the driver's own clock shows at `now`, as its report dates what it says [unix s].

        Its newest sign of life was seen at `beat_at` on the operator's clock, and soon after it happened.
        """
        if self.status is None or not self.beat_at:
            return now
        dated = max((self.status.heartbeat, *(engine.since for engine in self.status.engines)))
        return now - self.beat_at + dated if dated > 0 else now


@dataclass(frozen=True, slots=True)
class Storage:
    """A volume that all pods can write to, for jobs that name none."""

    source: Mapping[str, Any]
    """as in a pod's `spec.volumes`, without the name"""
    path: str = "/rljob"
    """where it is mounted"""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for what a job's manifest leaves out."""

    image: str | None = None
    storage: Storage | None = None
    directory_image: str | None = None
    """makes the run directories of jobs with another image than the default; None: the default image does"""
    scrapers: Mapping[str, str] | None = None
    """labels of the namespaces whose pods may read the driver's metrics; empty: all, None: none"""
    operator_namespace: str = "default"
    """namespace of the operator's pods, the only one from which they may reach a job's pods"""
    egress: tuple[Mapping[str, Any], ...] | None = None
    """what a job's pods may reach besides each other and DNS, as in a NetworkPolicy; None: everything"""
    has_kueue: bool = False
    """whether the operator watches Kueue's Workloads, so that jobs may name a queue"""
    tool_pod_owner: ToolPodOwner = ToolPodOwner.STATEFUL_SET
    """what makes the pods for the tools of jobs that begin now"""
    head_resources: Mapping[str, Any] = field(default_factory=dict)
    """as in a container's `resources`"""
    worker_resources: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """of the pods of all jobs, beside their own, see `job_defaults.py`"""
    release: str = "default/rljob-operator"
    """of this operator: namespace and name of its Lease"""
    longest_start_s: float = 3600.0
    """how long the pods and the driver of an attempt may take to start while they hold room [s]"""
    longest_drain_s: float = 1800.0
    """longest time for a driver to save and end, and for a pod to end, in any manifest [s]"""
    lost_pod_s: float = 120.0
    """pods stay for so long on a node that is not ready, and one that should have ended for so long is lost [s]"""
    ttl_after_deletion_s: int | None = None
    """time from the deletion of a job to that of its run directory; None: never [s]"""
    avoided_nodes: int = 2
    """nodes that a job avoids at most because they failed it twice"""


@dataclass(frozen=True, slots=True)
class ControlToken:
    """The control token of a job, and the operator's keys that it and the next one are derived from."""

    text: str = field(default="", repr=False)
    """for a Secret that has to be made"""
    key: str | None = None
    """id of the key of this token; None: an older operator made it at random"""
    next_key: str | None = None
    """id of the key from which the tokens of a new RayCluster are derived"""
    has_secret: bool = False
    """whether the Secret is there; it is found by creating it now and then"""


Diagnosed = Mapping[int, KnownFailure | None] | None
"""Failures that were found in the evidence of ended attempts, by number. None: planning reads the evidence itself,
which takes seconds
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """What is observed of one job: its objects in the cluster, its driver, and what others hold that it wants."""

    children: tuple[Manifest, ...] = ()
    """ConfigMaps, Services, NetworkPolicies, StatefulSets, Sandboxes and RayClusters of the job, with its label"""
    pods: tuple[Pod, ...] = ()
    """of its RayClusters"""
    workloads: tuple[Workload, ...] = ()
    """what Kueue says about the RayClusters"""
    gone_pods: tuple[Pod, ...] = ()
    """of its RayClusters, as they were last; only some, and none that was gone before this process began"""
    tool_pods: tuple[Pod, ...] = ()
    """that run its tools"""
    pod_events: Mapping[str, tuple[PodEvent, ...]] = field(default_factory=dict)
    """events of a pod that does not start, by its name; only where its status does not say why"""
    driver: Driver | None = None
    refused: str | None = None
    """why the API server refused a child; None: it refused none"""
    is_token_sure: bool = True
    """whether the control token is surely that of the RayCluster's pods: the operator has the key that it names"""
    diagnosed: Diagnosed = None
    runs: Runs = field(default_factory=dict)
    """which jobs claim which run directories"""
    is_other_release_gone: bool = False
    """whether the release that the job belongs to, if it is another one, has left its jobs"""

    def child(self, kind: str, name: str) -> Manifest | None:
        """Return the child of this kind and name."""
        return next((c for c in self.children if c["kind"] == kind and c["metadata"]["name"] == name), None)

    def rayclusters(self) -> tuple[Manifest, ...]:
        return tuple(child for child in self.children if child["kind"] == "RayCluster")

    def pods_of(self, cluster: str) -> tuple[Pod, ...]:
        """Return the pods of a RayCluster that are not being deleted."""
        return tuple(pod for pod in self.pods if pod.cluster == cluster and not pod.is_deleting)


@dataclass(frozen=True, slots=True)
class World:
    """All that a plan depends on besides the job and the time. Functions take the part that they need."""

    observed: Observed = Observed()
    token: ControlToken = ControlToken()
    defaults: Defaults = Defaults()
    queue_decision: QueueDecision | None = None
    """what the queue has decided about the job; None: it is not in rljob's queue"""
    pace: Pace = field(default_factory=Pace)
    """when the status was written lately"""

    def is_anothers(self, job: Job) -> bool:
        """Return whether the job belongs to another release, which has not left its jobs."""
        return job.is_left_to(self.defaults.release) is not None and not self.observed.is_other_release_gone


def is_deleting(child: Manifest) -> bool:
    return "deletionTimestamp" in child["metadata"]


def job_of(raw: Manifest) -> Job:
    """Return the job that an object of the API server describes; never raises for an invalid manifest."""
    metadata = raw["metadata"]
    manifest = {
        "apiVersion": raw["apiVersion"],
        "kind": raw["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
        "spec": with_labels(raw.get("spec", {}), metadata.get("labels") or {}),
    }
    spec, problems = _parsed(manifest)
    given = raw.get("status") or {}
    status = job_status.readable(given)
    found = _readable(manifest) if spec is None and status.get("attempts") else None
    if was_suspended({**raw, "status": status}):
        spec = spec.model_copy(update={"suspend": True}) if spec is not None else None
        found = replace(found, spec=found.spec.model_copy(update={"suspend": True})) if found is not None else None
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        resource_version=metadata.get("resourceVersion", ""),
        spec=spec,
        problems=problems,
        manifest=manifest,
        status=status,
        created=metadata.get("creationTimestamp", ""),
        is_deleting=is_deleting(raw),
        scheduler_labels=scheduler_labels(raw),
        managed_by=manager(raw),
        readable=found,
        given_status=given,
    )


def bare_job(raw: Manifest) -> Job:
    """Return a job of which only the metadata and the raw status are read; never raises for what the API server has."""
    metadata, status = raw["metadata"], raw.get("status")
    return Job(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        resource_version=metadata.get("resourceVersion", ""),
        spec=None,
        problems=(),
        manifest={},
        status=status if isinstance(status, dict) else {},
        is_deleting=is_deleting(raw),
        managed_by=manager(raw) if isinstance(raw.get("spec", {}), dict) else OUR_MANAGER,
    )


def _parsed(manifest: Manifest) -> tuple[Spec | None, tuple[Problem, ...]]:
    try:
        return parse(manifest).spec, ()
    except ManifestError as error:
        return None, error.problems
    except UNREADABLE as error:
        return None, (Problem("manifest", ABSENT, f"cannot be read: {said(error)}"),)


def _readable(manifest: Manifest) -> Readable | None:
    try:
        return readable(manifest)
    except UNREADABLE:
        return None


def pod_of(raw: Manifest) -> Pod:
    """Return the fields of a pod that matter here."""
    labels, status = raw["metadata"].get("labels", {}), raw.get("status", {})
    ready = _condition(status, "Ready")
    return Pod(
        name=raw["metadata"]["name"],
        cluster=labels.get(RAY_CLUSTER_LABEL, ""),
        is_head=labels.get(RAY_NODE_TYPE_LABEL) == "head",
        is_ready=ready.get("status") == "True",
        is_deleting=is_deleting(raw),
        stage=stage_of(raw),
        group=labels.get(RAY_GROUP_LABEL, ""),
        ip=status.get("podIP"),
        created=seconds(created) if (created := raw["metadata"].get("creationTimestamp")) else 0.0,
        out_of_memory_at=max(map(_killed_for_memory, status.get("containerStatuses", [])), default=0.0) or None,
        gone_by=seconds(deleted) if (deleted := raw["metadata"].get("deletionTimestamp")) else None,
        node=raw.get("spec", {}).get("nodeName"),
        trouble=trouble_of(raw),
        tools_of=labels.get(TOOLS_LABEL, ""),
        deleted_at=_deleted_at(raw["metadata"]),
        disruption=_disruption(status),
        is_on_silent_node=_is_on_silent_node(status),
    )


def _deleted_at(metadata: Manifest) -> float | None:
    """Return when a pod was deleted: its deletionTimestamp is the end of its grace period."""
    ends = metadata.get("deletionTimestamp")
    return seconds(ends) - (metadata.get("deletionGracePeriodSeconds") or 0) if ends else None


def _disruption(status: Manifest) -> str:
    condition = _condition(status, "DisruptionTarget")
    reason = condition.get("reason") if condition.get("status") == "True" else status.get("reason")
    return reason or ""


def _is_on_silent_node(status: Manifest) -> bool:
    """Return whether the node controller has marked a pod: it changes Ready alone, and gives no reason."""
    ready, containers = _condition(status, "Ready"), _condition(status, "ContainersReady")
    return (ready.get("status"), containers.get("status")) == ("False", "True") and not ready.get("reason")


def _killed_for_memory(container: Manifest) -> float:
    """Return when the container of Ray was killed for its memory last; 0: it was not [unix s]."""
    if container.get("name") not in RAY_CONTAINERS:
        return 0.0
    ends = (container.get(when, {}).get("terminated") or {} for when in ("state", "lastState"))
    killed = (end.get("finishedAt") for end in ends if end.get("reason") == "OOMKilled")
    return max((seconds(at) for at in killed if at), default=0.0)


def _condition(status: Manifest, kind: str) -> Manifest:
    return next((c for c in status.get("conditions", []) if c["type"] == kind), {})


def seconds(text: str) -> float:
    """Return an RFC 3339 time as unix seconds."""
    return datetime.fromisoformat(text).timestamp()
