"""From a job and its surroundings to its ticket. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rljob_api.exits import Exit
from rljob_api.sizing.topology import topology
from rljob_api.status import ConditionType
from rljob_operator import resuming
from rljob_operator.admitted_job import AdmittedJob
from rljob_operator.capacity.demand import Pods, demand
from rljob_operator.cluster_shape import can_scale
from rljob_operator.pod_roles import HEAD, TOOLS
from rljob_operator.queueing.ticket import Holding, Ticket
from rljob_operator.turn import Turn
from rljob_operator.world import Pod


def is_queued_here(job: AdmittedJob) -> bool:
    """Return whether rljob decides when a job may have pods; otherwise Kueue does.

    The only place that knows this. A label that names a queue has become the field.
    """
    return job.spec.scheduling.queue is None


def ticket_of(job: AdmittedJob, created: float, pods: Sequence[Pod], has_pods: bool, granted: Turn | None) -> Ticket:
    """Return the ticket of a job.

    `has_pods` also counts RayClusters, and pods of an older job of the same name. `granted` is what a pass has given
    to it, as long as the status may not show that yet.
    """
    status, wanted_engines, is_ours = job.status, job.spec.rollout.engines, is_queued_here(job)
    known = status.queue
    holding = _holding(job, has_pods, is_ours)
    if holding is Holding.NOTHING and granted is not None and granted.is_reserved and _wants(job):
        holding = Holding.RESERVED
    if holding is Holding.RESERVED and granted is not None and granted.preempted_for is not None:
        holding = Holding.LEAVING
    held_engines = wanted_engines
    if holding is Holding.RESERVED and can_scale(job.spec):
        written = known.engines if known is not None and known.engines is not None else wanted_engines
        promised = granted.engines if granted is not None and granted.engines is not None else 0
        held_engines = min(wanted_engines, max(written, promised))
    whole = demand(job)
    held = demand(job.with_engines(held_engines)) if held_engines < wanted_engines else whole
    preempted_for = known.preempted_for if known is not None else None
    if granted is not None and granted.preempted_for is not None:
        preempted_for = granted.preempted_for
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
        more=_difference(held, whole),
        engines=wanted_engines if can_scale(job.spec) else None,
        held_engines=held_engines if can_scale(job.spec) else None,
        since=known.since.timestamp() if known is not None and status.is_true(ConditionType.QUOTA_RESERVED) else None,
        first_since=known.first_since.timestamp() if known is not None and known.first_since is not None else None,
        preempted_for=preempted_for if holding is Holding.LEAVING else None,
    )


def _first_asked(job: AdmittedJob, created: float) -> float:
    """Return since when a job asks for room [unix s]: one that did not start in it comes after those that wait."""
    last = job.status.attempts[-1] if job.status.attempts else None
    if last is None or last.ended is None or last.started is not None or last.exit_code != Exit.STALLED:
        return created
    return max(created, last.ended.timestamp())


def shows(job: AdmittedJob, granted: Turn) -> bool:
    """Return whether a job's status shows what a pass has given, or taken."""
    is_reserved, known = job.status.is_true(ConditionType.QUOTA_RESERVED), job.status.queue
    if not granted.is_reserved:
        return not is_reserved
    engines = known.engines if known is not None and known.engines is not None else 0
    return is_reserved and (granted.engines is None or engines >= min(granted.engines, job.spec.rollout.engines))


def _holding(job: AdmittedJob, has_pods: bool, is_ours: bool) -> Holding:
    if not is_ours:
        return Holding.FOREIGN if has_pods else Holding.NOTHING
    status, attempts = job.status, job.status.attempts
    if status.is_true(ConditionType.QUOTA_RESERVED):
        return Holding.RESERVED
    # A job that had pods before there was a queue keeps them.
    is_open = status.completion_time is None and (not attempts or attempts[-1].ended is None)
    if status.condition(ConditionType.QUOTA_RESERVED) is None and is_open and (has_pods or attempts):
        return Holding.RESERVED
    return Holding.LEAVING if has_pods else Holding.NOTHING


def _wants(job: AdmittedJob) -> bool:
    """Return whether a job would have pods if it could."""
    status = job.status
    is_resumed = (
        status.is_true(ConditionType.FAILED)
        and bool(status.attempts)
        and resuming.resumes(job) > status.attempts[-1].resume
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
