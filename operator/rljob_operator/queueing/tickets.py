"""From a job and its surroundings to its ticket. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rljob_api.exits import Exit
from rljob_api.sizing.topology import topology
from rljob_api.status import ConditionType, NodeFate
from rljob_operator.attempts import resumption
from rljob_operator.capacity.demand import Pods, alike, demand
from rljob_operator.identity import Manifest
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import can_scale, is_of_engines
from rljob_operator.job.pod_roles import HEAD, TOOLS
from rljob_operator.queueing.ticket import Holding, Ticket
from rljob_operator.world.queue_decision import QueueDecision
from rljob_operator.world.world import Pod


def is_queued_here(job: AdmittedJob) -> bool:
    """Return whether rljob decides when a job may have pods; otherwise Kueue does.

    The only place that knows this. A label that names a queue has become the field.
    """
    return job.spec.scheduling.queue is None


def ticket_of(
    job: AdmittedJob,
    created: float,
    pods: Sequence[Pod],
    has_pods: bool,
    granted: QueueDecision | None,
    clusters: Sequence[Manifest] = (),
) -> Ticket:
    """Return the ticket of a job.

    `has_pods` also counts RayClusters, and pods of an older job of the same name. `granted` is what a pass has given
    to it, or taken, as long as the status may not show that yet. `clusters` are its RayClusters: pods that are made
    take what they were made with, even if the spec has changed since.
    """
    status, wanted_engines, is_ours = job.status, job.spec.rollout.engines, is_queued_here(job)
    whole, known = wanted_pods(job), status.queue
    built = _built(job, clusters)
    holding = _holding(job, has_pods, is_ours, granted)
    if holding is Holding.RESERVED and built is None and _granted(job, granted) not in (None, digest_of(job, whole)):
        holding = Holding.LEAVING if has_pods else Holding.NOTHING  # its room is for other pods than it wants now
    held_engines = wanted_engines
    if holding is Holding.RESERVED and can_scale(job.spec):
        written = known.engines if known is not None and known.engines is not None else wanted_engines
        promised = granted.engines if granted is not None and granted.engines is not None else 0
        held_engines = min(wanted_engines, max(written, promised))
    held = wanted_pods(job.with_engines(held_engines)) if held_engines < wanted_engines else whole
    is_edited = holding is not Holding.NOTHING and built is not None and not _is_alike(job, built, held)
    if is_edited and built is not None:
        held = built
    if not pods and any(each["spec"].get("suspend") is True for each in clusters):
        held, is_edited = (), True  # KubeRay makes no pods until Kueue or a user resumes it
    preempted_for = known.preempted_for if known is not None else None
    if granted is not None and granted.preempted_for is not None:
        preempted_for = granted.preempted_for
    taken = granted if granted is not None and not granted.is_reserved else None
    has_started = bool(status.attempts) and status.attempts[-1].started is not None
    return Ticket(
        key=f"{job.namespace}/{job.name}",
        namespace=job.namespace,
        created=_first_asked(job, created),
        pods=held,
        gpus=topology(job.with_engines(held_engines).spec).gpus,
        holding=holding,
        wants=_wants(job) and is_ours,
        priority_class=whole[0].priority_class,
        bound=_bound(pods),
        more=() if is_edited else _difference(held, whole),
        engines=wanted_engines if can_scale(job.spec) else None,
        held_engines=held_engines if can_scale(job.spec) else None,
        since=known.since.timestamp() if known is not None and status.is_true(ConditionType.QUOTA_RESERVED) else None,
        first_since=known.first_since.timestamp() if known is not None and known.first_since is not None else None,
        preempted_for=preempted_for if holding is Holding.LEAVING else None,
        due=_due(job),
        has_started=has_started,
        revoked=0 if has_started else _revoked(job, taken),
        retry_at=_retry_at(job, taken),
        granted=digest_of(job, whole),
    )


def wanted_pods(job: AdmittedJob) -> tuple[Pods, ...]:
    """Return the pods of a job; those of an open attempt may be on no node that it avoids."""
    newest = job.status.attempts[-1] if job.status.attempts else None
    known = newest.nodes or {} if newest is not None and newest.ended is None else {}
    avoids = frozenset(node for node, fate in known.items() if fate is NodeFate.AVOIDED)
    return tuple(replace(each, avoids=avoids) for each in demand(job)) if avoids else demand(job)


def _first_asked(job: AdmittedJob, created: float) -> float:
    """Return since when a job asks for room [unix s]: one that did not start in it comes after those that wait."""
    last = job.status.attempts[-1] if job.status.attempts else None
    if last is None or last.ended is None or last.started is not None or last.exit_code != Exit.STALLED:
        return created
    return max(created, last.ended.timestamp())


def digest_of(job: AdmittedJob, pods: Sequence[Pods]) -> str:
    """Return a digest of what a reservation is for; the number of engines is kept apart where it may change."""
    may_change = can_scale(job.spec)
    parts = [
        (
            each.group,
            0 if may_change and is_of_engines(each.group) else each.count,
            sorted(each.requests.items()),
            sorted(each.node_selector.items()),
            [sorted(one.items()) for one in each.tolerations],
            each.priority_class,
        )
        for each in pods
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _built(job: AdmittedJob, clusters: Sequence[Manifest]) -> tuple[Pods, ...] | None:
    """Return the pods of a job's RayCluster, with those for its tools; None: there is none.

    That of the newest attempt, or else one that is still being deleted.
    """
    newest = job.status.attempts[-1].cluster if job.status.attempts else ""
    if not clusters:
        return None
    spec = max(clusters, key=lambda each: bool(each["metadata"]["name"] == newest))["spec"]
    try:
        workers = [(each["groupName"], each.get("replicas", 0), each) for each in spec.get("workerGroupSpecs", ())]
        groups = [(HEAD, 1, spec["headGroupSpec"]), *workers]
        found = [alike(group, count, raw["template"]["spec"]) for group, count, raw in groups]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None  # a user has made or changed it: it says nothing about the job's pods
    return (*found, *(each for each in demand(job) if each.group == TOOLS))


def _is_alike(job: AdmittedJob, built: Sequence[Pods], wanted: Sequence[Pods]) -> bool:
    """Return whether pods that are made are those that are wanted; the number of engines may change."""
    counted = [each for each in wanted if not (can_scale(job.spec) and is_of_engines(each.group))]
    there = {each.group: each for each in built}
    return all(
        each.group in there and dict(there[each.group].requests) == dict(each.requests) for each in wanted
    ) and all(there[each.group].count == each.count for each in counted)


def _granted(job: AdmittedJob, granted: QueueDecision | None) -> str | None:
    """Return the digest of the pods that a reservation is for; None: that is not known."""
    if granted is not None and granted.is_reserved:
        return granted.granted
    return job.status.queue.granted if job.status.queue is not None else None


def _revoked(job: AdmittedJob, taken: QueueDecision | None) -> int:
    if taken is not None:
        return taken.revoked
    return job.status.queue.revoked or 0 if job.status.queue is not None else 0


def _due(job: AdmittedJob) -> float | None:
    """Return when the pods of a job were to be made that has not started [unix s]."""
    attempts = job.status.attempts
    is_open = bool(attempts) and attempts[-1].ended is None and attempts[-1].started is None
    return attempts[-1].start_after.timestamp() if is_open else None


def _retry_at(job: AdmittedJob, taken: QueueDecision | None) -> float:
    if taken is not None:
        return taken.retry_at or 0.0
    known = job.status.queue
    return known.retry_at.timestamp() if known is not None and known.retry_at is not None else 0.0


def shows(job: AdmittedJob, granted: QueueDecision) -> bool:
    """Return whether a job's status shows what a pass has given, or taken."""
    is_reserved, known = job.status.is_true(ConditionType.QUOTA_RESERVED), job.status.queue
    if not granted.is_reserved:
        return not is_reserved
    engines = known.engines if known is not None and known.engines is not None else 0
    return is_reserved and (granted.engines is None or engines >= min(granted.engines, job.spec.rollout.engines))


def _holding(job: AdmittedJob, has_pods: bool, is_ours: bool, granted: QueueDecision | None) -> Holding:
    if not is_ours:
        return Holding.FOREIGN if has_pods else Holding.NOTHING
    if granted is not None and not granted.is_reserved and _is_reserved(job, has_pods):
        return Holding.LEAVING
    if _is_reserved(job, has_pods) or (granted is not None and granted.is_reserved and not has_pods and _wants(job)):
        return Holding.RESERVED
    return Holding.LEAVING if has_pods else Holding.NOTHING


def _is_reserved(job: AdmittedJob, has_pods: bool) -> bool:
    """Return whether a job holds a reservation, as its status says."""
    status, attempts = job.status, job.status.attempts
    if status.is_true(ConditionType.QUOTA_RESERVED):
        return True
    # A job that had pods before there was a queue keeps them.
    is_open = status.completion_time is None and (not attempts or attempts[-1].ended is None)
    is_unknown = status.condition(ConditionType.QUOTA_RESERVED) is None
    return is_unknown and is_open and (has_pods or bool(attempts))


def _wants(job: AdmittedJob) -> bool:
    """Return whether a job would have pods if it could."""
    status = job.status
    is_resumed = (
        status.is_true(ConditionType.FAILED)
        and bool(status.attempts)
        and resumption.resumes(job) > status.attempts[-1].resume
    )
    has_ended = status.completion_time is not None and not is_resumed
    return job.can_build and job.held_by is None and not job.spec.suspend and not has_ended


def _bound(pods: Sequence[Pod]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        if pod.node is not None:
            group = HEAD if pod.is_head else TOOLS if pod.tools_of else pod.group
            found[group] = (*found.get(group, ()), pod.node)
    return found


def _difference(held: Sequence[Pods], whole: Sequence[Pods]) -> tuple[Pods, ...]:
    """Return the pods that are wanted besides those that are held."""
    there = {each.group: each.count for each in held}
    more = (replace(each, count=each.count - there.get(each.group, 0)) for each in whole)
    return tuple(each for each in more if each.count > 0)
