"""Whether a job whose first driver does not start has waited long enough. Pure."""

from dataclasses import replace

from rljob_api.exits import Exit
from rljob_operator.admitted_job import AdmittedJob
from rljob_operator.attempt_view import AttemptView
from rljob_operator.claims import Reason
from rljob_operator.conditions import pods_ready
from rljob_operator.history import JobHistory, Outcome
from rljob_operator.world import DriverState

LOOK_S = 30.0
"""how long a new operator looks for a driver on a ready head: the last one may have started it [s]"""


def with_start_deadline(history: JobHistory, attempt: AttemptView, job: AdmittedJob, now: float) -> JobHistory:
    """Return the history of a job that has failed if its first driver did not start in time, or as it was.

    Time in Kueue's queue does not count: the attempt is due when Kueue admits it.
    Later attempts may wait longer: the run has checkpoints, and the active deadline bounds the whole job.
    """
    limit_s, record = job.spec.scheduling.start_deadline_seconds, attempt.record
    if limit_s is None or history.started is not None or history.outcome is not None or not record.is_open:
        return history
    if attempt.is_suspended or now < record.start_after + limit_s or _may_run(attempt, now):
        return history
    reason = f"no driver has started within {limit_s} s; waited for: {_awaited(attempt, job, now)}"
    ended = replace(record, ended=int(now), exit_code=int(Exit.STALLED), reason=reason[:500])
    failed = Outcome(False, Reason.START_DEADLINE_EXCEEDED, reason, int(now))
    return replace(history.with_newest(ended), outcome=failed)


def _may_run(attempt: AttemptView, now: float) -> bool:
    if attempt.driver is None:
        return attempt.has_ready_head
    return attempt.driver.state is DriverState.UNKNOWN and now - attempt.driver.since < LOOK_S


def _awaited(attempt: AttemptView, job: AdmittedJob, now: float) -> str:
    """Return what the first driver lacks."""
    ready = pods_ready(attempt, job, now)
    if ready.status != "True":
        return ready.message
    if attempt.driver is None or attempt.driver.state is DriverState.UNKNOWN:
        return f"an answer of Ray to the operator; {ready.message}"
    return f"Ray to start the driver, which it shows as {attempt.driver.state}; {ready.message}"
