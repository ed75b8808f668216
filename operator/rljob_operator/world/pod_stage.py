"""How far a pod has come on its way to ready, as its status and its events show it. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rljob_operator.identity import Manifest


class Stage(StrEnum):
    """What a pod that is not ready waits for; the order is that of the chain, after those that cannot go on."""

    FAILED = "PodFailed"
    SCHEDULING = "Scheduling"
    SANDBOX = "PodSandbox"
    VOLUMES = "Volumes"
    CREATING = "ContainerCreating"
    """volumes, sandbox or image: only events say which"""
    IMAGE = "ImagePull"
    CONFIG = "ContainerConfig"
    CRASHING = "Crashing"
    INIT = "InitContainers"
    PROBES = "Probes"


PULLING = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
CRASHED = ("CrashLoopBackOff",)
BEGINNING = (None, "PodInitializing", "ContainerCreating")
MEANING = {
    "FailedCreatePodSandBox": Stage.SANDBOX,
    "FailedMount": Stage.VOLUMES,
    "FailedAttachVolume": Stage.VOLUMES,
    "FailedMapVolume": Stage.VOLUMES,
    "Pulling": Stage.IMAGE,
    "Failed": Stage.IMAGE,
}
"""by reason of an event"""
LONGEST_LINE = 300
"""characters of the last line of a container's log"""


@dataclass(frozen=True, slots=True)
class PodStage:
    """A stage, and since when."""

    stage: Stage
    since: float
    """[unix s]"""
    text: str = ""
    """what the scheduler or the kubelet says; empty: nothing"""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One event about a pod."""

    reason: str
    note: str
    at: float
    """of its newest repetition [unix s]"""


def stage_of(raw: Manifest) -> PodStage | None:
    """Return what a pod waits for; None: it is ready or has ended well."""
    status, created = raw.get("status", {}), _seconds(raw["metadata"].get("creationTimestamp"))
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    if status.get("phase") == "Failed":
        text = status.get("message") or status.get("reason") or "the pod has failed"
        return PodStage(Stage.FAILED, created, str(text))
    if conditions.get("Ready", {}).get("status") == "True" or status.get("phase") == "Succeeded":
        return None
    scheduled = conditions.get("PodScheduled", {})
    since = _seconds(scheduled.get("lastTransitionTime")) or created
    if scheduled.get("status") != "True" and "nodeName" not in raw.get("spec", {}):
        return PodStage(Stage.SCHEDULING, since, str(scheduled.get("message") or scheduled.get("reason") or ""))
    found = _of_containers(status.get("initContainerStatuses", ()), since, is_init=True)
    return found or _of_containers(status.get("containerStatuses", ()), since) or PodStage(Stage.CREATING, since)


def _of_containers(containers: Iterable[Manifest], since: float, is_init: bool = False) -> PodStage | None:
    """Return the stage of the first container that is not done; None: all are, or none is known yet."""
    running: PodStage | None = None
    for container in containers:
        state = container.get("state", {})
        waiting = state.get("waiting")
        if waiting is not None:
            if waiting.get("reason") in BEGINNING:
                return PodStage(Stage.CREATING, since) if running is None else running
            return PodStage(_stage(waiting["reason"]), since, _of_crash(container) or _said(waiting))
        if "running" in state and not container.get("ready", False):
            begun = _seconds(state["running"].get("startedAt")) or since
            name = container.get("name", "")
            stage = Stage.INIT if is_init else Stage.PROBES
            text = f"init container {name} runs" if is_init else f"container {name} runs and is not ready"
            running = running or PodStage(stage, begun, text)
        elif "terminated" in state and state["terminated"].get("exitCode") != 0:
            return PodStage(Stage.CRASHING, since, _end_of(container, state["terminated"]))
    return running


def _stage(reason: str) -> Stage:
    if reason in PULLING:
        return Stage.IMAGE
    return Stage.CRASHING if reason in CRASHED else Stage.CONFIG


def _of_crash(container: Manifest) -> str:
    """Return how a container ended that waits to be started again; empty: it waits for something else.

    The kubelet itself says only how long it waits.
    """
    reason, last = container["state"]["waiting"].get("reason"), container.get("lastState", {}).get("terminated")
    return f"{reason}: {_end_of(container, last)}" if reason in CRASHED and last else ""


def _end_of(container: Manifest, ended: Manifest) -> str:
    """Return the reason, the exit code and the last line of what a container left."""
    code = ended.get("exitCode")
    reason = ended.get("reason", "Unknown") if code is None else f"{ended.get('reason', 'Unknown')}, exit code {code}"
    last = next((line.strip() for line in reversed(str(ended.get("message", "")).splitlines()) if line.strip()), "")
    return f"container {container.get('name', '')} ended: {reason}: {last[:LONGEST_LINE]}".removesuffix(": ")


def _said(state: Manifest) -> str:
    return f"{state.get('reason', 'Unknown')}: {state.get('message', '')}".removesuffix(": ")


def with_events(stage: PodStage, events: Sequence[PodEvent]) -> PodStage:
    """Return the stage of a container that is being created, as precisely as the pod's events show it."""
    if stage.stage is not Stage.CREATING:
        return stage
    pulled = max((event.at for event in events if event.reason == "Pulled"), default=0.0)
    known = [event for event in events if event.reason in MEANING and event.at >= pulled]
    if not known:
        return stage
    newest = max(known, key=lambda event: event.at)
    return PodStage(MEANING[newest.reason], stage.since, " ".join(newest.note.split()))


def pod_event_of(raw: Manifest) -> PodEvent:
    """Return an event of `events.k8s.io/v1` or `v1`."""
    times = (
        (raw.get("series") or {}).get("lastObservedTime"),
        raw.get("deprecatedLastTimestamp") or raw.get("lastTimestamp"),
        raw.get("eventTime"),
        raw["metadata"].get("creationTimestamp"),
    )
    at = next((_seconds(time) for time in times if time), 0.0)
    return PodEvent(raw.get("reason") or "", raw.get("note") or raw.get("message") or "", at)


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
