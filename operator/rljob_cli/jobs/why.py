"""`rljob why`: what a job waits for, or how it goes, in a sentence, and the evidence. Pure: from objects that the
caller may read.

conditions ─► quota, nodes ─► RayCluster ─► pods ─► events of the pod that is stuck
a failure of the last attempt ─► findings of the training ─► its speed beside its own usual one
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from rljob_api.status import ConditionType, Phase, Status
from rljob_cli.jobs import training
from rljob_cli.jobs.jobs import Job, Manifest
from rljob_cli.records.run_health import Number, RunHealth
from rljob_operator.attempts.attempt_view import AttemptView, attempt_view
from rljob_operator.capacity.obstacle import Outcome
from rljob_operator.capacity.queues import Queues
from rljob_operator.capacity.snapshot import snapshot, used_by_node
from rljob_operator.capacity.verdict import Verdict, verdict
from rljob_operator.identity import RAY_CLUSTER_LABEL
from rljob_operator.job.admitted_job import AdmittedJob, admitted_job
from rljob_operator.status.record import history_of
from rljob_operator.status.waiting import Blocker, Waiting, before_driver, words
from rljob_operator.world.kueue import workload_of
from rljob_operator.world.pod_stage import PodEvent, with_events
from rljob_operator.world.world import Defaults, Observed, Pod, job_of, pod_of

WAITS = (Phase.QUEUED, Phase.PROVISIONING, Phase.STARTING, Phase.RECOVERING)
"""phases in which pods may be what is missing"""
OF_STEPS = ("EnginesAway", "NotSound", "Slow", "NotLearning")
"""verdicts of a run's health that are a reason"""
COARSE = ("step", "speed", "reward")
"""evidence of the status that the record of all steps replaces"""
SHOWN_PODS = 8
SHOWN_EVENTS = 5
SHOWN_NODES = 8
NO_KUBERAY = "this cluster serves no RayClusters, which the operator makes for the pods: install KubeRay 1.6 or newer"


@dataclass(frozen=True, slots=True)
class Seen:
    """The objects that could be read; None: not allowed."""

    job: Manifest
    rayclusters: Sequence[Manifest] | None = ()
    """None: the cluster does not serve this kind"""
    pods: Sequence[Manifest] = ()
    events: Mapping[str, tuple[PodEvent, ...]] = field(default_factory=dict)
    """of pods that are stuck, by name"""
    quotas: Sequence[Manifest] | None = None
    limits: Sequence[Manifest] | None = None
    nodes: Sequence[Manifest] | None = None
    others: Sequence[Manifest] | None = None
    """all pods of the cluster"""
    workloads: Sequence[Manifest] = ()
    """of Kueue, in the job's namespace"""
    queues: Queues | None = None
    """of Kueue"""


@dataclass(frozen=True, slots=True)
class Why:
    """The answer."""

    sentence: str
    blocker: str
    """what the job waits for, or its phase"""
    since: float | None
    """[unix s]"""
    evidence: tuple[tuple[str, str], ...]
    """(kind, text)"""
    numbers: tuple[Number, ...] = ()
    """of the last steps, beside the usual ones"""


def why(job: Job, seen: Seen, now: float) -> Why:
    """Return what a job waits for; of a job that waits for nothing, why it is in its phase."""
    admitted, view = _view(seen)
    found = before_driver(view, admitted, now) if admitted and view and job.status.phase in WAITS else None
    fits = _verdict(admitted, seen) if admitted and not seen.pods and not job.has_ended else None
    if seen.rayclusters is None and not job.has_ended:
        return Why(NO_KUBERAY, Blocker.RAY_CLUSTER, None, ())
    nodes = (("node", f"{node}: {how}") for node, how in job.failed_nodes[:SHOWN_NODES])
    evidence = (*_evidence(job, view, found, fits, seen), *nodes)
    if fits is not None and fits.outcome is Outcome.NEVER:
        return Why(f"it can never start: {fits.message}", "Quota", None, evidence)
    if found is not None:
        return Why(found.sentence, found.blocker, found.since, evidence)
    if job.status.phase is Phase.QUEUED and job.status.queue is not None:
        return Why(job.explanation, Blocker.QUEUE, job.status.queue.since.timestamp(), evidence)
    if fits is not None and fits.outcome is Outcome.LATER:
        return Why(f"it waits for room: {fits.message}", "Quota", None, evidence)
    since = job.status.phase_since.timestamp() if job.status.phase_since else None
    evidence = (*evidence, *training.evidence(job))
    if sentence := training.sentence(job):
        return Why(sentence, str(job.status.phase), since, evidence)
    return Why(job.explanation or "nothing is known", str(job.status.phase or "New"), since, evidence)


def with_health(found: Why, job: Job, health: RunHealth) -> Why:
    """Return the answer about a job that trains with what the record of all its steps says.

    The status knows the last step and a coarse curve; the record says what is slow, and compared with what.
    """
    says_more = health.verdict in OF_STEPS and not training.wrong(job)
    evidence = tuple(each for each in found.evidence if each[0] not in COARSE)
    return replace(
        found,
        sentence=health.sentence if says_more else found.sentence,
        evidence=(*evidence, *(("finding", each) for each in health.evidence)),
        numbers=health.numbers,
    )


def stuck(seen: Seen) -> tuple[Pod, ...]:
    """Return the pods of the newest attempt that are not ready."""
    _, view = _view(seen)
    return tuple(pod for pod in view.pods if pod.stage is not None) if view else ()


def _view(seen: Seen) -> tuple[AdmittedJob | None, AttemptView | None]:
    """Return the job and its newest attempt as the operator sees them, except the driver."""
    # A newer operator may have written fields that this command does not know.
    status = Status.model_validate(seen.job.get("status", {}), extra="ignore")
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    job = job_of({**seen.job, "status": written})
    spec = job.spec or (job.readable.spec if job.readable else None)
    if spec is None:
        return None, None
    admitted = admitted_job(job, spec, Defaults(), seen.rayclusters or ())
    record = history_of(status).attempt
    if record is None or not record.is_open:
        return admitted, None
    pods = tuple(pod_of(raw) for raw in seen.pods if RAY_CLUSTER_LABEL in raw["metadata"].get("labels", {}))
    workloads = tuple(map(workload_of, seen.workloads))
    observed = Observed(tuple(seen.rayclusters or ()), pods, workloads, pod_events=seen.events)
    return admitted, attempt_view(record, admitted, observed)


def _verdict(job: AdmittedJob, seen: Seen) -> Verdict:
    known = None if seen.others is None else seen.nodes
    used = used_by_node(seen.others or ())
    found = snapshot(seen.quotas or (), seen.limits or (), known, used, queues=seen.queues)
    return verdict(job, found.of(job.namespace))


def _evidence(
    job: Job, view: AttemptView | None, found: Waiting | None, fits: Verdict | None, seen: Seen
) -> Iterator[tuple[str, str]]:
    for kind in (ConditionType.QUOTA_RESERVED, ConditionType.CLUSTER_READY, ConditionType.TRAINING):
        condition = job.condition(kind)
        if condition is not None and condition.status != "True" and not job.has_ended:
            yield "condition", f"{kind} is {condition.status}, {condition.reason}: {condition.message}"
    if view is not None and view.workload is not None:
        yield "kueue", f"{view.workload.reason}: {view.workload.sentence}"
    if fits is not None:
        yield "capacity", fits.message or "quotas and nodes have room for all pods"
    unread = [name for name in ("quotas", "limits", "nodes") if getattr(seen, name) is None]
    if fits is not None and unread:
        yield "capacity", f"you may not read: {', '.join(unread)}"
    if view is None:
        return
    waiting = [pod for pod in view.pods if pod.stage is not None]
    for pod in waiting[:SHOWN_PODS]:
        assert pod.stage is not None
        stage = with_events(pod.stage, view.pod_events.get(pod.name, ()))
        at = datetime.fromtimestamp(stage.since, UTC)
        yield "pod", f"{pod.name}: {stage.stage} since {at:%H:%M:%S} UTC: {words(stage) or 'no reason is given'}"
    if len(waiting) > SHOWN_PODS:
        yield "pod", f"and {len(waiting) - SHOWN_PODS} more"
    for name, events in view.pod_events.items():
        for event in sorted(events, key=lambda event: event.at)[-SHOWN_EVENTS:]:
            yield "event", f"{name}: {event.reason}: {' '.join(event.note.split())}"
