"""What a job waits for: the first blocker on the way from its RayCluster to the first step, with numbers. Pure.

queue ─► earlier pods ─► API server ─► Kueue's queue ─► RayCluster, quota ─► pods: node, volumes, sandbox, image, init,
probes ─► Ray starts the driver ─► placement group ─► engines load the model
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from rljob_api.control import EngineState, RunState, Status
from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.sizing.topology import topology
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.children.tool_pods import owner
from rljob_operator.identity import Manifest
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import num_pods
from rljob_operator.world.kueue import UNSEEN, Workload
from rljob_operator.world.pod_stage import PodStage, Stage, with_events
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import DriverState, Pod, seconds

PATIENCE_S = 20.0
"""a pod that is being created, or starts, is reported after this time [s]"""
REFUSED_S = 60.0
"""KubeRay makes pods within seconds, and writes no status of a RayCluster that it refuses [s]"""
UNHEARD = "KubeRay has made no pod of the RayCluster and has not written its status: it refuses it, or does not run"
ASK_S = 5.0
"""the events of a pod that is being created are read after this time [s]"""
USUAL = (Stage.CREATING, Stage.INIT, Stage.PROBES)
"""stages that every pod passes"""
WORDS = {
    Stage.SCHEDULING: "no scheduler has looked at it",
    Stage.SANDBOX: "its sandbox cannot be made",
    Stage.VOLUMES: "a volume cannot be mounted",
    Stage.CREATING: "its containers are being created",
}
"""where the scheduler or the kubelet says nothing, or not enough"""


class Blocker(StrEnum):
    """What a job waits for; label of a metric. Those of pods are the values of `Stage`."""

    PREVIOUS_CLUSTER = "PreviousCluster"
    REFUSED = "Refused"
    QUEUE = "Queue"
    QUOTA = "Quota"
    RAY_CLUSTER = "RayCluster"
    BACK_OFF = "BackOff"
    DRIVER = "Driver"
    PLACEMENT = "Placement"
    ENGINES = "Engines"
    TOOLS = "ToolPods"


BLOCKERS: tuple[str, ...] = (*Blocker, *Stage)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The first blocker."""

    blocker: str
    """of `BLOCKERS`"""
    text: str
    """a sentence that stays the same while nothing changes"""
    since: float | None = None
    """[unix s]; None: not known"""

    @property
    def sentence(self) -> str:
        """Return the text with the time of day when it began."""
        if not self.since:
            return self.text
        return f"{self.text} (since {datetime.fromtimestamp(self.since, UTC):%Y-%m-%d %H:%M:%S} UTC)"


def waiting(attempt: AttemptView, job: AdmittedJob, now: float) -> Waiting | None:
    """Return what an open attempt waits for before its first step; None: for nothing that is known."""
    record, driver = attempt.record, attempt.driver
    if record.started is None and not attempt.has_live_driver:
        return before_driver(attempt, job, now) or _back_off(attempt, now) or _unstarted(attempt)
    if driver is None or driver.status is None or driver.status.state is not RunState.STARTING:
        return None
    return in_driver(driver.status, job)


def in_queue(job: AdmittedJob, now: float) -> Waiting | None:
    """Return what a job waits for that the queue holds back; None: the queue does not."""
    if job.queue_decision is None or not job.is_held:
        return None
    known = job.status.queue
    since = known.since.timestamp() if known is not None and known.position is not None else now
    return Waiting(Blocker.QUEUE, queue_text(job.queue_decision), since)


def queue_text(decision: QueueDecision) -> str:
    """Return a decision in words: `position 2 in the queue: needs ...`."""
    if decision.position is not None:
        return f"position {decision.position} in the queue: {decision.text}"
    return f"preempted: {decision.text}" if decision.standing is Standing.PREEMPTED else decision.text


def before_driver(attempt: AttemptView, job: AdmittedJob, now: float) -> Waiting | None:
    """Return what the pods wait for."""
    if attempt.others:
        return Waiting(Blocker.PREVIOUS_CLUSTER, f"{', '.join(attempt.others)} of an earlier attempt still exist")
    if attempt.refused is not None:
        return Waiting(Blocker.REFUSED, attempt.refused)
    if attempt.is_suspended and not attempt.is_in_kueue:
        return Waiting(Blocker.RAY_CLUSTER, by_hand(attempt.record.cluster))
    if attempt.is_suspended:
        return in_kueue(attempt.workload)
    failure = _failure_of(attempt.cluster)
    if failure is not None:
        return failure
    blocked = _pod(attempt, now)
    if blocked is not None:
        return blocked
    if attempt.cluster is not None and _is_ignored(attempt, now):
        return Waiting(
            Blocker.RAY_CLUSTER, f"{UNHEARD}; `kubectl describe raycluster {attempt.record.cluster}` says why"
        )
    missing = num_pods(job.spec) - len(attempt.pods)
    if missing > 0 and attempt.cluster is not None and now >= _due(attempt) + PATIENCE_S:
        return Waiting(Blocker.RAY_CLUSTER, f"KubeRay has not created {missing} of {num_pods(job.spec)} pods yet")
    for_tools = num_tool_pods(job.spec)
    missing = for_tools - len(attempt.tool_pods)
    if missing > 0 and attempt.cluster is not None and now >= _due(attempt) + PATIENCE_S:
        kind = owner(job).lower()
        text = f"{missing} of {for_tools} pods for tools do not exist; `kubectl describe {kind}` says why"
        return Waiting(Blocker.TOOLS, text)
    return None


def _is_ignored(attempt: AttemptView, now: float) -> bool:
    """Return whether KubeRay has neither made a pod of a RayCluster nor written a word into its status."""
    cluster = attempt.cluster or {}
    is_silent = not cluster.get("status", {}).get("conditions")
    return is_silent and not attempt.has_pods and now >= _due(attempt) + REFUSED_S


def by_hand(cluster: str) -> str:
    """Return in words that a RayCluster is suspended, though its job is in no queue of Kueue."""
    return (
        f"RayCluster {cluster} is suspended, and the job names no queue of Kueue. Kueue does that for ever with "
        "manageJobsWithoutQueueName: set spec.scheduling.queue. If it was done by hand, set its spec.suspend to false"
    )


def in_kueue(workload: Workload | None) -> Waiting:
    """Return what a job waits for whose RayCluster Kueue has suspended."""
    if workload is None:
        return Waiting(Blocker.QUEUE, UNSEEN)
    return Waiting(Blocker.QUEUE, workload.sentence, workload.since)


def _due(attempt: AttemptView) -> float:
    """Return when the attempt was due, or its RayCluster was made again after that [unix s]."""
    made = (attempt.cluster or {}).get("metadata", {}).get("creationTimestamp")
    return max(float(attempt.record.start_after), seconds(made) if made else 0.0)


def _failure_of(raycluster: Manifest | None) -> Waiting | None:
    """Return why KubeRay cannot make or delete a pod, without the pod's name: every try has another one."""
    conditions = raycluster.get("status", {}).get("conditions", []) if raycluster else []
    for condition in conditions:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            text = re.sub(r'pods "[^"]*" is forbidden', "a pod is forbidden", " ".join(condition["message"].split()))
            since = seconds(at) if (at := condition.get("lastTransitionTime")) else None
            return Waiting(Blocker.QUOTA if "exceeded quota" in text else Blocker.RAY_CLUSTER, text, since)
    return None


def _pod(attempt: AttemptView, now: float) -> Waiting | None:
    """Return what the pod waits for that is behind all others; alike are counted."""
    blocked = [
        (pod, with_events(pod.stage, attempt.pod_events.get(pod.name, ())))
        for pod in (*attempt.pods, *attempt.tool_pods)
        if pod.stage is not None and not pod.is_ready
    ]
    worth = [(pod, stage) for pod, stage in blocked if not _is_usual(stage) or now - stage.since >= PATIENCE_S]
    if not worth:
        return None
    first, stage = min(worth, key=lambda each: _rank(*each))
    alike = sum(each.stage is stage.stage for _, each in worth) - 1
    others = f" (and {alike} more)" if alike else ""
    return Waiting(stage.stage, f"{first.name}{others}: {words(stage)}", stage.since)


def words(stage: PodStage) -> str:
    """Return what a pod waits for, in words."""
    own = WORDS.get(stage.stage, "")
    if stage.stage is Stage.SCHEDULING and stage.text:
        return stage.text
    return ": ".join(part for part in (own, stage.text) if part)


def _is_usual(stage: PodStage) -> bool:
    return stage.stage in USUAL or not stage.text


def _rank(pod: Pod, stage: PodStage) -> tuple[bool, float, bool, str]:
    rank: float = list(Stage).index(stage.stage)
    if stage.stage is Stage.PROBES and pod.is_head:
        rank = list(Stage).index(Stage.INIT) - 0.5  # the init containers of workers wait for the head
    # A pod about which nothing is known comes after one with a reason, however far that one is.
    return stage.stage is Stage.CREATING and not stage.text, rank, not pod.is_head, pod.name


def pod_to_ask(pods: Sequence[Pod], now: float) -> Pod | None:
    """Return the pod whose events must be read: one whose status does not say why it does not start."""
    silent = [
        pod
        for pod in pods
        if pod.stage is not None and pod.stage.stage is Stage.CREATING and now - pod.stage.since >= ASK_S
    ]
    return min(
        (pod for pod in silent if not pod.is_deleting), key=lambda pod: (not pod.is_head, pod.name), default=None
    )


def _back_off(attempt: AttemptView, now: float) -> Waiting | None:
    if now >= attempt.record.start_after:
        return None
    return Waiting(Blocker.BACK_OFF, f"attempt {attempt.record.number} begins after a pause")


def _unstarted(attempt: AttemptView) -> Waiting | None:
    if not attempt.has_ready_head:
        return None
    if attempt.driver is None or attempt.driver.state is DriverState.UNKNOWN:
        return Waiting(Blocker.DRIVER, "Ray does not answer the operator yet", _due(attempt))
    return Waiting(Blocker.DRIVER, f"Ray has not started the driver; it shows it as {attempt.driver.state}")


def in_driver(status: Status, job: AdmittedJob) -> Waiting | None:
    """Return what a driver waits for that starts."""
    since = status.phase_since or None
    if not status.engines:
        gpus = topology(job.spec).gpus
        text = f"the driver looks up the model, and Ray reserves a placement group of {gpus} slots"
        return Waiting(Blocker.PLACEMENT, text, since)
    loading = [each for each in status.engines if each.state is EngineState.STARTING]
    if not loading:
        return None
    without = [each for each in loading if each.node is None]
    first = (without or loading)[0]
    which = f"{len(loading)} of {len(status.engines)} engines are not up; {first.name}"
    what = "waits for room in Ray" if without else "loads the model"
    return Waiting(Blocker.PLACEMENT if without else Blocker.ENGINES, f"{which} {what}", first.since)


def counted(found: Waiting | None, ready: int, wanted: int) -> str:
    """Return how many pods are ready, and what the others wait for."""
    text = f"{ready} of {wanted} pods are ready"
    return f"{text}; {found.sentence}" if found else text
