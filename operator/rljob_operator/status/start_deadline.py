"""Whether an attempt whose driver does not start has waited long enough. Pure.

the manifest's deadline, of the first driver     ─► the job fails
the cluster's, of every attempt that holds room  ─► the attempt ends, its pods are freed, the job is queued again
"""

from dataclasses import replace

from rljob_api.exits import Cause, Exit
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.status.conditions import pods_ready
from rljob_operator.world.claims import Reason
from rljob_operator.world.history import AttemptRecord, JobHistory, Outcome
from rljob_operator.world.pod_stage import Stage
from rljob_operator.world.world import DriverState

LOOK_S = 30.0
"""how long a new operator looks for a driver on a ready head: the last one may have started it [s]"""


def with_start_deadline(history: JobHistory, attempt: AttemptView, job: AdmittedJob, now: float) -> JobHistory:
    """Return the history of a job whose driver did not start in time, or as it was.

    Time in Kueue's queue does not count: the attempt is due when Kueue admits it. The cluster's deadline counts only
    while the attempt holds a reservation or a node.
    """
    record, longest_s = attempt.record, job.defaults.longest_start_s
    if history.outcome is not None or not record.is_open or record.started is not None or _may_run(attempt, now):
        return history
    if attempt.is_suspended and attempt.is_in_kueue:
        return history
    limit_s = job.spec.scheduling.start_deadline_seconds
    if limit_s is not None and history.started is None and now >= record.start_after + limit_s:
        ended = _ended(record, limit_s, _awaited(attempt, job, now), now)
        failed = Outcome(False, Reason.START_DEADLINE_EXCEEDED, ended.reason, int(now))
        return replace(history.with_newest(ended), outcome=failed)
    if now >= record.start_after + longest_s and _holds_room(attempt, job):
        ended = _ended(record, longest_s, _awaited(attempt, job, now), now)
        # A missing node alone is not a failure: the job waits again, as often as needed.
        cause = Cause.SUSPENDED if _lacks_nodes_only(attempt) else Cause.INFRASTRUCTURE
        return history.with_newest(replace(ended, cause=cause))
    return history


def _ended(record: AttemptRecord, limit_s: float, awaited: str, now: float) -> AttemptRecord:
    reason = f"no driver has started within {limit_s:.0f} s; waited for: {awaited}"
    return replace(record, ended=int(now), exit_code=int(Exit.STALLED), reason=reason[:500])


def _holds_room(attempt: AttemptView, job: AdmittedJob) -> bool:
    """Return whether others could use what the attempt holds: not if it only waits for a scheduler."""
    is_reserved = job.queue_decision is not None and job.queue_decision.is_reserved
    return is_reserved or attempt.is_in_kueue or any(pod.node is not None for pod in attempt.pods)


def _lacks_nodes_only(attempt: AttemptView) -> bool:
    stages = [pod.stage.stage for pod in (*attempt.pods, *attempt.tool_pods) if pod.stage is not None]
    return bool(stages) and all(stage is Stage.SCHEDULING for stage in stages)


def _may_run(attempt: AttemptView, now: float) -> bool:
    if attempt.driver is None:
        return attempt.has_ready_head  # it is followed from this look on
    return attempt.driver.state is DriverState.UNKNOWN and now - attempt.driver.since < LOOK_S


def _awaited(attempt: AttemptView, job: AdmittedJob, now: float) -> str:
    """Return what the first driver lacks."""
    ready = pods_ready(attempt, job, now)
    if ready.status != "True":
        return ready.message
    if attempt.driver is None or attempt.driver.state is DriverState.UNKNOWN:
        return f"an answer of Ray to the operator; {ready.message}"
    return f"Ray to start the driver, which it shows as {attempt.driver.state}; {ready.message}"
