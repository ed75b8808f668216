"""Which attempt of a job's driver there should be: begin one, notice its end, and what follows. Pure.

                 ┌────────────── restart: on the warm cluster, or on a new one ─────────────┐
                 ▼                                                                          │
    begin ─► submitted, runs ─► ended by itself, or by our verdict ─► recovery.after_exit ──┤
                                                                                            └─► outcome
All decisions about failures are `rljob_api.recovery`'s.
"""

import math
from dataclasses import replace

from rljob_api import recovery
from rljob_api.control import RunState
from rljob_api.exits import Cause, Exit, camel_case
from rljob_api.known_failure import KnownFailure, without_line
from rljob_api.recovery import BACKOFF, Done, GiveUp, RestartDriver
from rljob_api.sections import Recovery, Spec
from rljob_api.status import MOST_ATTEMPTS, ConditionType, NodeFate, Phase
from rljob_operator.attempts import escalation, resumption
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.attempts.avoidance import Avoidance, avoidance, avoided, found_no_other_nodes
from rljob_operator.attempts.causes import cause_of
from rljob_operator.attempts.diagnosis import evidence_of, failure_in
from rljob_operator.attempts.nodes import with_failed_nodes, with_nodes, without_used
from rljob_operator.identity import (
    ATTEMPT_ANNOTATION,
    Manifest,
    attempt_of_cluster,
    cluster_name,
    secret_name,
    token_key,
)
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.world.history import AttemptRecord, Evidence, JobHistory, Outcome
from rljob_operator.world.world import ALIVE, ENDED, SILENT_S, Diagnosed, Driver, DriverState, Observed, is_deleting

FIRST_ANSWER_S = 30.0
"""how long the operator waits for a driver's first answer before it stops a suspended job's driver [s]"""

HEAD_S = 900.0
"""how long Ray may be silent while its head's pod is not ready: a new pod may have to get its image [s]"""

WITH_NODES = 10
"""attempts that have ended of which all nodes are kept; of older ones, those that failed"""

LAST_LINE = "; its last words: "
LONGEST_REASON = 500
"""[characters]"""
OVERDUE = "the active deadline has passed"
LOST = "the status of the job was lost"
SUSPENDED_EARLY = "before the driver started"


def advance(
    history: JobHistory, attempt: AttemptView | None, job: AdmittedJob, diagnosed: Diagnosed, now: float
) -> JobHistory:
    """Return the history as it should be at `now` [unix s], given what is observed of its newest attempt."""
    if history.outcome is not None:
        if attempt is None or not resumption.is_resumed(history, job) or job.held_by is not None:
            return history
        return _begin(replace(history, outcome=None), job, attempt, now, 0.0)
    if attempt is None:
        return history if job.is_suspended else _begin(history, job, None, now, 0.0)
    if attempt.record.is_open:
        record = with_nodes(_observed(attempt, job, _is_over(history, job.spec, now), now), attempt)
        if not record.is_open:
            found = _failure(record, attempt, diagnosed)
            if isinstance(found, Evidence):
                return replace(history, undiagnosed=found)
            record = _explained(record, attempt, history, job, found)
        history, attempt = history.with_newest(record), replace(attempt, record=record)
    if not attempt.record.is_open:
        return _followed(history, attempt, job, now)
    judged = _judged(attempt, job, _is_over(history, job.spec, now), now)
    return history.with_newest(escalation.timed(attempt.record, judged, attempt.driver, job.is_suspended, now))


def rebuilt(known: JobHistory, job: AdmittedJob, observed: Observed, now: float) -> JobHistory:
    """Return the known history; if there is none, the newest attempt of which something is left.

    A status can be lost by a restore of the API server's data, or by a program that writes it. Attempt 1 would delete
    the live RayCluster, and the fence of the run directory, which has seen later attempts, would refuse its driver.
    The newest RayCluster is adopted with its driver. Without any, the attempt has ended, and the next one follows it.
    """
    if known.attempts or known.outcome is not None:
        return known
    number = max((_attempt_of(child) for child in observed.children), default=0)
    if number == 0:
        return known
    clusters = [cluster["metadata"]["name"] for cluster in observed.rayclusters() if not is_deleting(cluster)]
    if not clusters:
        gone = cluster_name(job.name, job.uid, number)
        ended = AttemptRecord(number, gone, int(now), ended=int(now), exit_code=Exit.PREEMPTED, reason=LOST)
        return JobHistory((ended,))
    newest = max(clusters, key=attempt_of_cluster)
    # Where a head is ready a driver may run, and nothing is submitted or stopped until Ray has answered.
    has_head = any(pod.is_head and pod.is_ready for pod in observed.pods_of(newest))
    return JobHistory((AttemptRecord(number, newest, int(now), started=int(now) if has_head else None),))


def _attempt_of(child: Manifest) -> int:
    """Return the latest attempt that a child shows; 0: none."""
    metadata = child["metadata"]
    annotated = metadata.get("annotations", {}).get(ATTEMPT_ANNOTATION, "")
    named = attempt_of_cluster(metadata["name"]) if child["kind"] == "RayCluster" else 0
    return max(named, int(annotated) if annotated.isdecimal() else 0)


def deadline(history: JobHistory, spec: Spec) -> float | None:
    """Return when the job has to be over [unix s]; None: there is no deadline, or nothing has started."""
    limit_s = spec.scheduling.active_deadline_seconds
    return None if limit_s is None or history.started is None else history.started + limit_s


def _is_over(history: JobHistory, spec: Spec, now: float) -> bool:
    due = deadline(history, spec)
    return due is not None and now >= due


def _observed(attempt: AttemptView, job: AdmittedJob, is_over: bool, now: float) -> AttemptRecord:
    """Return the record of the open attempt with what is observed of its driver."""
    record, driver = attempt.record, attempt.driver
    if record.started is None:
        record = _once_admitted(record, attempt, now)
        if job.is_suspended and (driver is None or driver.state not in (*ALIVE, *ENDED)):
            return _ended(record, Exit.PREEMPTED, f"{_suspended(job)} {SUSPENDED_EARLY}", now)
        if is_over:
            return _ended(record, Exit.STALLED, OVERDUE, now)
        if (alone := found_no_other_nodes(attempt, now)) is not None:
            return _ended(record, Exit.PREEMPTED, alone, now)
        if attempt.stuck and not attempt.has_live_driver:
            return _ended(record, Exit.PREEMPTED, _incomplete(attempt), now)
    elif attempt.lost_its_cluster:
        return _lost(attempt, f"RayCluster {record.cluster} is gone", now)
    elif attempt.is_suspended and not attempt.has_pods:
        return _evicted(attempt, now)
    elif _has_lost_its_head(attempt, now):
        lost = _lost(attempt, "Ray does not answer, and its head's pod is not ready or its node is lost", now)
        return replace(lost, is_abandoned=True)
    if (driver is None or driver.state not in ENDED) and escalation.is_stop_overdue(record, driver, now):
        return _abandoned(record, now)
    if escalation.is_locked_out(record, driver, attempt.is_token_sure, now):
        return _locked_out(attempt, job, now)
    if driver is None or driver.state in (DriverState.UNKNOWN, DriverState.PENDING):
        return record
    if driver.state is DriverState.ABSENT:
        if record.started is None:
            return record
        return _lost(attempt, "Ray no longer knows the driver: the head was restarted", now)
    checkpoint = driver.status.checkpoint if driver.status else None
    record = replace(
        record,
        started=int(now) if record.started is None else record.started,
        checkpoint=checkpoint.step if checkpoint else record.checkpoint,
    )
    if driver.state in ENDED:
        code, reason = _end_of(driver)
        if attempt.is_suspended and code != Exit.OK and code not in recovery.NEVER_RETRIED:
            return _evicted(attempt, now)  # its pods are deleted one by one, and those that are left may complain
        return _ended(record, code, reason, now)
    return record


def _has_lost_its_head(attempt: AttemptView, now: float) -> bool:
    """Return whether Ray is silent and the API server shows why: neither alone ends a run."""
    driver = attempt.driver
    if driver is None or driver.state is not DriverState.UNKNOWN or attempt.is_suspended:
        return False
    silent_s = now - driver.turned
    return (silent_s >= HEAD_S and not attempt.has_ready_head) or (silent_s >= SILENT_S and attempt.has_lost_head)


def _incomplete(attempt: AttemptView) -> str:
    """Return why a RayCluster will never have all of its pods."""
    first, *others = sorted(attempt.stuck)
    more = f" and {len(others)} more" if others else ""
    return f"KubeRay makes no pod in place of {first}{more}: its node is silent, and it does not end"


def _once_admitted(record: AttemptRecord, attempt: AttemptView, now: float) -> AttemptRecord:
    """Return the record of an attempt that has not begun: it is due when Kueue admits it, however long that takes."""
    admitted_at = attempt.workload.admitted_at if attempt.workload else None
    if admitted_at is None or admitted_at <= record.start_after:
        return record
    return replace(record, start_after=max(record.start_after, math.ceil(min(admitted_at, now))))


def _evicted(attempt: AttemptView, now: float) -> AttemptRecord:
    """Return the record of an attempt that Kueue has evicted. Its RayCluster stays, and so its place in the queue."""
    status = attempt.driver.status if attempt.driver else None
    checkpoint = status.checkpoint.step if status and status.checkpoint else attempt.record.checkpoint
    why = attempt.workload.eviction if attempt.workload else ""
    record = replace(attempt.record, checkpoint=checkpoint, verdict=None)
    return _ended(record, Exit.PREEMPTED, why or f"RayCluster {record.cluster} was suspended", now)


def _locked_out(attempt: AttemptView, job: AdmittedJob, now: float) -> AttemptRecord:
    """Return the attempt as ended because its driver refuses the operator; the pods' own hooks let it save."""
    key = token_key(attempt.cluster) if attempt.cluster is not None else None
    name = secret_name(job.name, job.uid, key)
    why = "whose key the operator does not have" if key is not None else "which was deleted and made again"
    reason = f"the driver refuses the token of Secret {name}, {why}: its RayCluster is deleted"
    return replace(_ended(attempt.record, Exit.PREEMPTED, reason, now), reason=reason, is_abandoned=True)


def _abandoned(record: AttemptRecord, now: float) -> AttemptRecord:
    """Return the attempt as ended although its driver may still run; deleting its RayCluster ends it."""
    reason = f"{record.reason}; the driver has not stopped for {escalation.STOP_S:.0f} s: its RayCluster is deleted"
    return replace(_ended(record, Exit.STALLED, reason, now), reason=reason[-LONGEST_REASON:], is_abandoned=True)


def _lost(attempt: AttemptView, reason: str, now: float) -> AttemptRecord:
    """Return the record of an attempt whose driver is gone without an answer of Ray.

    A driver that has reported its end before was preempted: its head was evicted and is gone since.
    """
    status = attempt.driver.status if attempt.driver else None
    if status is not None and status.state is RunState.FINISHED and status.progress.step < status.progress.steps:
        checkpoint = status.checkpoint.step if status.checkpoint else attempt.record.checkpoint
        record = replace(attempt.record, checkpoint=checkpoint)
        return _ended(record, Exit.PREEMPTED, status.exit_reason or recovery.reason_of(Exit.PREEMPTED), now)
    return _ended(attempt.record, Exit.LOST_PEER, reason, now)


def _failure(ended: AttemptRecord, attempt: AttemptView, diagnosed: Diagnosed) -> KnownFailure | Evidence | None:
    """Return the known failure that ended an attempt, or the evidence that has to be read first."""
    found = evidence_of(ended, attempt)
    if found is None:
        return None
    if diagnosed is None:
        return failure_in(found)
    return diagnosed.get(ended.number, found)


def _explained(
    record: AttemptRecord, attempt: AttemptView, history: JobHistory, job: AdmittedJob, failure: KnownFailure | None
) -> AttemptRecord:
    """Return the record of an attempt that has just ended, with what it reached and what its end counts as."""
    reported = attempt.driver.status if attempt.driver else None
    written = job.status.progress
    step = reported.progress.step if reported else written.step if written else None
    record = replace(record, step=step)
    cause = cause_of(record, attempt, history.attempts[:-1], job)
    return with_failed_nodes(replace(record, cause=cause, failure=failure), attempt)


def _end_of(driver: Driver) -> tuple[int, str]:
    """Return the exit code of a driver that has ended, and why it ended in words."""
    reported = driver.status.exit_reason if driver.status else None
    if driver.exit_code is not None:
        return driver.exit_code, reported or _with_last_line(recovery.reason_of(driver.exit_code), driver.message)
    if driver.state is DriverState.SUCCEEDED:
        return Exit.OK, recovery.reason_of(Exit.OK)
    if driver.state is DriverState.STOPPED:
        return Exit.FAILED, "stopped through Ray"
    # Ray gives no exit code when the command never ran, or its supervisor was lost with the head.
    first_line = driver.message.strip().partition("\n")[0]
    return Exit.LOST_PEER, first_line or "Ray lost the driver"


def _with_last_line(reason: str, message: str) -> str:
    """Return the reason with the last line of the driver's log, if Ray's message quotes the log after its own line."""
    _, *log = [line.strip() for line in without_line(message).splitlines() if line.strip()] or [""]
    return f"{reason}{LAST_LINE}{log[-1]}" if log else reason


def _with_end_of(last: AttemptRecord, reason: str) -> str:
    """Return why the job has failed, with what is known of its last attempt besides the meaning of the exit code."""
    known = last.reason.removeprefix(recovery.reason_of(last.exit_code or 0)).removeprefix(LAST_LINE)
    said = f"{reason}: {known}" if known else reason
    return f"{said}; {last.failure}" if last.failure else said


def _ended(record: AttemptRecord, exit_code: int, reason: str, now: float) -> AttemptRecord:
    """Return the attempt as ended; the operator's verdict explains the end better than Ray's."""
    if record.verdict is not None:
        return replace(record, ended=int(now), exit_code=int(record.verdict))
    return replace(record, ended=int(now), exit_code=int(exit_code), reason=reason[:LONGEST_REASON])


def _judged(attempt: AttemptView, job: AdmittedJob, is_over: bool, now: float) -> AttemptRecord:
    """Return the record of the open attempt, with a verdict if it has to be ended."""
    record, driver, spec, longest_s = attempt.record, attempt.driver, job.spec, job.defaults.longest_drain_s
    if record.verdict is not None or record.started is None or driver is None:
        return record
    if is_over:
        return replace(record, verdict=Exit.STALLED, reason=OVERDUE)
    if attempt.is_suspended:
        return record  # KubeRay ends its pods within their grace period
    if attempt.stuck and (driver.status is None or driver.status.state is RunState.STARTING):
        return replace(record, verdict=Exit.LOST_PEER, reason=_incomplete(attempt))
    ends = job.is_suspended or escalation.is_draining(driver) is True
    if ends and escalation.is_drain_overdue(record, driver, spec.recovery, longest_s, now):
        waited_s = escalation.drain_deadline_s(driver.status, spec.recovery, longest_s)
        return replace(
            record, verdict=Exit.PREEMPTED, reason=f"{_suspended(job)}, and not ended within {waited_s:.0f} s"
        )
    if driver.state not in ALIVE or now - driver.refused_at < SILENT_S:
        return record  # what refuses the operator now may be a mesh, behind which the driver is well
    if job.is_suspended and _is_mute(driver, now):
        return replace(record, verdict=Exit.PREEMPTED, reason=f"{_suspended(job)} {SUSPENDED_EARLY}")
    silent_s = now - max(driver.since, driver.beat_at, record.started)
    stall = recovery.stalled(driver.status, silent_s, spec.recovery)
    if stall is not None and not driver.grace:
        return replace(record, verdict=Exit.STALLED, reason=stall[:LONGEST_REASON])
    return _without_engines(record, driver, spec.recovery, now)


def _suspended(job: AdmittedJob) -> str:
    return "preempted" if job.is_held else "suspended" if job.is_suspended else "suspended for a moment"


def _is_mute(driver: Driver, now: float) -> bool:
    """Return whether a driver, which never answered, cannot be asked to save."""
    return driver.status is None and now - driver.turned > FIRST_ANSWER_S


def _without_engines(record: AttemptRecord, driver: Driver, policy: Recovery, now: float) -> AttemptRecord:
    if driver.status is None or driver.status.state in (RunState.FINISHED, RunState.FAILED):
        return record
    past = recovery.history_of(driver.status)
    orders = recovery.decide(driver.status.engines, past, policy, driver.clock(now))
    lost = next((order for order in orders if isinstance(order, RestartDriver)), None)
    return record if lost is None else replace(record, verdict=Exit.LOST_PEER, reason=lost.reason[:LONGEST_REASON])


def _followed(history: JobHistory, last: AttemptView, job: AdmittedJob, now: float) -> JobHistory:
    """Return the history after the end of the newest attempt: with an outcome, with another attempt, or as it was."""
    ended, exit_code = last.record.ended, last.record.exit_code
    assert ended is not None
    if _is_over(history, job.spec, now) and exit_code != Exit.OK:
        return replace(history, outcome=Outcome(False, "DeadlineExceeded", OVERDUE, int(now)))
    if last.record.has_never_started and not _has_left(last, job):
        return history
    if last.record.for_policy().cause is Cause.SUSPENDED:
        return history if job.is_suspended else _begin(history, job, last, now, 0.0)
    if resumption.seen_by_fence(last.record, job.uid) is not None:
        return history if job.is_suspended else _begin(history, job, last, ended, 0.0)
    match recovery.after_exit(
        [attempt.for_policy() for attempt in resumption.since_resumed(history)], job.spec.recovery, BACKOFF
    ):
        case Done():
            result = last.driver.status.result if last.driver and last.driver.status else None
            return replace(history, outcome=Outcome(True, "Completed", result or "all steps are done", ended))
        case GiveUp(reason, code):
            message = _with_end_of(last.record, reason)
            return replace(history, outcome=Outcome(False, camel_case(code), message, ended))
        case RestartDriver(_, delay_s):
            return history if job.is_suspended else _begin(history, job, last, ended, delay_s)


def _has_left(last: AttemptView, job: AdmittedJob) -> bool:
    """Return whether an attempt that did not start has freed its pods and, in the queue, given back its room."""
    return last.lost_its_cluster and not last.has_pods and not job.status.is_true(ConditionType.QUOTA_RESERVED)


def _begin(history: JobHistory, job: AdmittedJob, last: AttemptView | None, now: float, delay_s: float) -> JobHistory:
    if not job.can_build or job.held_by is not None:
        return history
    number, checkpoint = 1, None
    if last is not None:
        later = resumption.seen_by_fence(last.record, job.uid) or 0
        number, checkpoint = max(last.record.number, later) + 1, last.record.checkpoint
    cluster, found = cluster_name(job.name, job.uid, number), avoidance(history.attempts, job, now)
    if last is not None and _can_be_used_again(last, history) and not _is_on_suspects(last, found):
        cluster, found = last.record.cluster, Avoidance(avoided(last.record))
    new = AttemptRecord(
        number,
        cluster,
        start_after=math.ceil(now + delay_s),
        checkpoint=checkpoint,
        resume=resumption.resumes(job),
        asked=_asked(job, now),
        nodes=dict.fromkeys(sorted(found.nodes), NodeFate.AVOIDED),
        note=found.note,
    )
    before = history.attempts
    kept = (*map(without_used, before[:-WITH_NODES]), *before[-WITH_NODES:], new)
    return replace(history, attempts=kept[-MOST_ATTEMPTS:])


def _asked(job: AdmittedJob, now: float) -> int | None:
    """Return since when a job wants the attempt that begins now, if it did not want one all the time."""
    match job.status.phase:
        case Phase.SUSPENDED | Phase.FAILED:
            return int(now)
        case Phase.QUEUED if job.status.phase_since is not None:
            return int(job.status.phase_since.timestamp())
        case _:
            return None


def _is_on_suspects(last: AttemptView, found: Avoidance) -> bool:
    """Return whether pods of a RayCluster may be on nodes that are to be avoided from now on.

    Kueue would put another RayCluster at the end of its queue.
    """
    return not last.is_in_kueue and not set(found.nodes) <= set(avoided(last.record))


def _can_be_used_again(last: AttemptView, history: JobHistory) -> bool:
    """Return whether the next attempt should run on the cluster of the last one.

    One that was preempted has lost a pod, or will: its node is being drained. One with a pod on a dead node stays
    without another in its place.
    """
    if last.lost_its_cluster or last.stuck or not last.is_built_for_spec:
        return False
    if last.is_suspended:
        return last.is_in_kueue  # its pods are gone, and its place in the queue stays
    if last.record.exit_code == Exit.PREEMPTED:
        return False
    if last.record.is_abandoned:
        return False  # its driver may still run there
    on_it = (attempt for attempt in resumption.since_resumed(history) if attempt.cluster == last.record.cluster)
    failures = [attempt.for_policy() for attempt in on_it if attempt.exit_code != Exit.PREEMPTED]
    return not failures or not recovery.wants_new_cluster(failures)
