"""What is true of a job, as the messages of its conditions. Pure: from what is observed and what is known.

A message states facts, not what is being done about them: it stays the same while the operator carries a plan out.
"""

import math

from rljob_api import recovery
from rljob_api.control import EngineState, EngineStatus, RunState
from rljob_api.exits import Exit
from rljob_api.sizing.tool_pods import num_tool_pods
from rljob_api.status import ConditionType as Type
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import num_pods
from rljob_operator.job.pods import HOOK_MARGIN_S
from rljob_operator.status.waiting import before_driver, by_hand, counted, in_driver, in_kueue, queue_text
from rljob_operator.world.claims import Claim, Claims, Reason
from rljob_operator.world.history import AttemptRecord, JobHistory
from rljob_operator.world.queue_decision import Standing
from rljob_operator.world.world import Driver, DriverState


def refused(why: Claim) -> Claims:
    """Return the conditions of a job that is not admitted."""
    waiting = Claim("False", Reason.NOT_ADMITTED, why.message)
    unknown = Claim("Unknown", Reason.NOT_ADMITTED, "the job has not been admitted")
    return {
        Type.ADMITTED: why,
        Type.CLUSTER_READY: waiting,
        Type.TRAINING: waiting,
        Type.ENGINES_READY: unknown,
        Type.DEGRADED: Claim("False", Reason.NOT_ADMITTED, "nothing runs"),
        Type.SOUND: unknown,
        Type.SUCCEEDED: unknown,
        Type.FAILED: unknown,
        Type.READY: Claim("False", why.reason, why.message),
        Type.RECONCILING: Claim("False", why.reason, "waits for a valid manifest"),
        Type.STALLED: Claim("True", why.reason, why.message),
    }


def conditions(history: JobHistory, attempt: AttemptView | None, job: AdmittedJob, now: float) -> Claims:
    """Return the conditions of a job with this history, whose newest attempt is `attempt`."""
    if job.objection is not None and not job.can_build and history.has_stopped:
        return refused(job.objection)
    cluster = cluster_ready(history, attempt, job, now)
    running = training(history, attempt, job, cluster, now)
    driver = attempt.driver if attempt is not None else None
    engines = engines_ready(driver, running)
    return {
        Type.ADMITTED: admitted(job),
        **kueue_quota(attempt, job),
        **quota_reserved(history, job),
        Type.CLUSTER_READY: cluster,
        Type.TRAINING: running,
        Type.ENGINES_READY: engines,
        Type.DEGRADED: degraded(history, engines, running, grace_too_short(attempt)),
        Type.SOUND: sound(driver, running),
        **_ending(history),
        **_summary(history, running),
    }


def admitted(job: AdmittedJob) -> Claim:
    if job.objection is None:
        return Claim("True", Reason.VALID, "the manifest is valid")
    why = f"{job.objection.reason}: {job.objection.message}"
    return Claim("True", Reason.REFUSED_NOW, f"the job has begun and continues; a new one would be refused: {why}")


def kueue_quota(attempt: AttemptView | None, job: AdmittedJob) -> Claims:
    """Return what Kueue says about the quota of an open attempt; nothing, if it has not been asked."""
    if attempt is None or not attempt.record.is_open or attempt.workload is None:
        return {}
    workload = attempt.workload
    text = workload.message
    if workload.reserved and attempt.cluster is not None and not attempt.is_built_for_spec:
        text += "; the spec has changed since: the next attempt requests its current values"
    return {Type.QUOTA_RESERVED: Claim("True" if workload.reserved else "False", workload.reason, text)}


def quota_reserved(history: JobHistory, job: AdmittedJob) -> Claims:
    """Return whether the job holds room in quotas and on nodes; None: the job is not in rljob's queue."""
    if job.queue_decision is None:
        return {}
    if history.outcome is not None and job.queue_decision.position is None:
        return {Type.QUOTA_RESERVED: Claim("False", Reason.FINISHED, "the job has ended and holds nothing")}
    if history.attempt is None or not history.attempt.is_open:
        if job.spec.suspend:
            return {Type.QUOTA_RESERVED: Claim("False", Reason.SUSPENDED, "the job is suspended and holds nothing")}
        if (held := directory_in_use(job)) is not None:
            return {Type.QUOTA_RESERVED: held}
        if history.attempt is not None and history.attempt.has_never_started and job.queue_decision.is_reserved:
            text = f"attempt {history.attempt.number} did not start in time and has given back its room"
            return {Type.QUOTA_RESERVED: Claim("False", Reason.QUEUED, text)}
    if job.queue_decision.is_reserved:
        return {Type.QUOTA_RESERVED: Claim("True", Reason.RESERVED, job.queue_decision.text)}
    return {Type.QUOTA_RESERVED: Claim("False", job.queue_decision.standing, queue_text(job.queue_decision))}


def _held(job: AdmittedJob) -> Claim | None:
    """Return why a job without pods has none, if that is the queue's doing."""
    if job.queue_decision is None or not job.is_held:
        return None
    reason = Reason.NEVER_FITS if job.queue_decision.standing is Standing.NEVER else Reason.QUEUED
    return Claim("False", reason, queue_text(job.queue_decision))


def cluster_ready(history: JobHistory, attempt: AttemptView | None, job: AdmittedJob, now: float) -> Claim:
    if history.outcome is not None:
        return Claim("False", Reason.FINISHED, "the job has ended and its pods are freed")
    if attempt is None or not attempt.record.is_open:
        suspended = Claim("False", Reason.SUSPENDED, "the job is suspended and has no pods")
        return directory_in_use(job) or _held(job) or _unstarted(history, job) or suspended
    return pods_ready(attempt, job, now)


def directory_in_use(job: AdmittedJob) -> Claim | None:
    """Return that a job waits for its run directory; None: it does not."""
    if job.held_by is None or job.spec.suspend:
        return None
    where = f"the run directory {job.resolved.directory} belongs to RLJob {job.held_by}"
    return Claim("False", Reason.DIRECTORY_IN_USE, f"{where}; this job begins when that one has ended or is deleted")


def _unstarted(history: JobHistory, job: AdmittedJob) -> Claim | None:
    """Return that a job frees the pods of an attempt that did not start in time, before it begins another one."""
    last = history.attempt
    if last is None or not last.has_never_started or job.spec.suspend:
        return None
    return Claim("False", Reason.BACK_OFF, f"attempt {last.number} frees its pods: {last.reason}")


def pods_ready(attempt: AttemptView, job: AdmittedJob, now: float) -> Claim:
    """Return whether all pods of an open attempt are ready, and no others are left."""
    if attempt.others:
        return Claim("False", Reason.PREVIOUS_CLUSTER, f"{', '.join(attempt.others)} of an earlier attempt still exist")
    if attempt.is_suspended and not attempt.is_in_kueue:
        return Claim("False", Reason.SUSPENDED_BY_HAND, by_hand(attempt.record.cluster))
    if attempt.is_suspended:
        return Claim("False", Reason.QUEUED, in_kueue(attempt.workload).sentence)
    wanted = num_pods(job.spec) + num_tool_pods(job.spec)
    ready = sum(pod.is_ready for pod in (*attempt.pods, *attempt.tool_pods))
    if ready >= wanted and attempt.has_ready_head:
        return Claim("True", Reason.PODS_READY, f"{wanted} of {wanted} pods are ready")
    return Claim("False", Reason.PROVISIONING, counted(before_driver(attempt, job, now), ready, wanted))


def training(history: JobHistory, attempt: AttemptView | None, job: AdmittedJob, cluster: Claim, now: float) -> Claim:
    """Return whether the driver trains; `cluster` is the claim about the attempt's cluster."""
    if history.outcome is not None:
        return Claim("False", Reason.FINISHED, history.outcome.message)
    if attempt is None or not attempt.record.is_open:
        suspended = Claim("False", Reason.SUSPENDED, _suspended(job))
        return directory_in_use(job) or _held(job) or _unstarted(history, job) or suspended
    record, name = attempt.record, f"attempt {attempt.record.number}"
    if record.verdict is not None:
        return Claim("False", Reason.ENDING, f"{name} is being stopped: {record.reason}")
    if record.started is None:
        if now < record.start_after and history.attempts[:-1]:
            return Claim("False", Reason.BACK_OFF, f"{name} waits: {history.attempts[-2].reason}")
        if attempt.is_suspended:
            return Claim("False", cluster.reason, cluster.message)
        if cluster.status != "True" and not attempt.has_live_driver:
            return Claim("False", Reason.CLUSTER_NOT_READY, cluster.message)
        return Claim("False", Reason.STARTING, f"{name} starts")
    if attempt.is_suspended:
        return Claim("True", Reason.EVICTED, f"{name} saves and ends: {in_kueue(attempt.workload).text}")
    return _training_of(attempt.driver, job, name)


def _suspended(job: AdmittedJob) -> str:
    if job.manifest["spec"].get("suspend"):
        return "the job is suspended"
    how = "to resume it, set spec.suspend to true and then to false"
    return f"the job is suspended, by spec.scheduling.suspend of an older version; {how}"


def _training_of(driver: Driver | None, job: AdmittedJob, name: str) -> Claim:
    """Return whether a driver that was seen running trains."""
    if driver is not None and driver.refuses_since is not None:
        return Claim("Unknown", Reason.UNREACHABLE, f"{name}: the driver refuses the operator's control token")
    if driver is None or driver.state is DriverState.UNKNOWN:
        return Claim("Unknown", Reason.UNREACHABLE, f"{name}: Ray does not answer the operator")
    if job.is_suspended:
        why = f": {queue_text(job.queue_decision)}" if job.is_held and job.queue_decision else ""
        return Claim("True", Reason.DRAINING, f"{name} saves and ends{why}")
    if driver.status is not None and driver.status.eviction is not None:
        return Claim("True", Reason.EVICTED, f"{name} saves and ends: {driver.status.eviction}")
    if driver.status is None or driver.status.state is RunState.STARTING:
        found = in_driver(driver.status, job) if driver.status is not None else None
        return Claim("False", Reason.STARTING, f"{name} starts: {found.text}" if found else f"{name} starts")
    if driver.status.state is RunState.FAILED:  # possibly before its first step
        return Claim("False", Reason.NOT_TRAINING, f"{name} ends: {driver.status.exit_reason or 'it has failed'}")
    return Claim("True", Reason.RUNNING, f"{name} trains")


def engines_ready(driver: Driver | None, running: Claim) -> Claim:
    if driver is None or driver.status is None or not driver.status.engines or running.status != "True":
        return Claim("Unknown", Reason.NOT_TRAINING, "the state of the engines is known only while the job trains")
    engines = [engine for engine in driver.status.engines if engine.state is not EngineState.LEAVING]
    healthy = sum(engine.state is EngineState.HEALTHY for engine in engines)
    said = f"{healthy} of {len(engines)} engines are healthy"
    dead = [engine for engine in engines if engine.state is EngineState.DEAD]
    if healthy == len(engines):
        return Claim("True", Reason.ALL_HEALTHY, said)
    coming = [engine for engine in engines if _is_coming(engine)]
    if healthy + len(coming) == len(engines):
        waits = "waits for room" if coming[0].node is None else "starts"
        return Claim("False", Reason.SCALING, f"{said}; {coming[0].name} {waits}")
    why = f"; {dead[0].name}: {dead[0].last_error or 'no error known'}" if dead else ""
    return Claim("False", Reason.ENGINE_DOWN, said + why)


def _is_coming(engine: EngineStatus) -> bool:
    """Return whether an engine was added and has not served yet."""
    return engine.restarts == 0 and engine.state in (EngineState.STARTING, EngineState.STALE)


def degraded(history: JobHistory, engines: Claim, running: Claim, grace: Claim | None) -> Claim:
    """Return whether the job continues with less than it should have; `grace` is what `grace_too_short` returns."""
    if engines.reason == Reason.ENGINE_DOWN:
        return Claim("True", engines.reason, engines.message)
    if running.reason == Reason.UNREACHABLE:
        return Claim("True", running.reason, running.message)
    failed = _failed_since_checkpoint(history)
    if failed is not None and history.outcome is None:
        return Claim("True", Reason.RESTARTED, f"attempt {failed.number} ended: {failed.reason}")
    if grace is not None and running.reason == Reason.RUNNING:
        return grace
    return Claim("False", Reason.AS_EXPECTED, "no problems are known")


def grace_too_short(attempt: AttemptView | None) -> Claim | None:
    """Return that an eviction would lose steps, because the pods' grace period is too short; None: it is not, or
    nothing is known yet.
    """
    if attempt is None or attempt.driver is None or attempt.driver.status is None or attempt.cluster is None:
        return None
    needed_s = recovery.drain_seconds(attempt.driver.status)
    grace_s = attempt.cluster["spec"]["headGroupSpec"]["template"]["spec"].get("terminationGracePeriodSeconds")
    if needed_s is None or grace_s is None or needed_s <= grace_s - HOOK_MARGIN_S:
        return None
    # In minutes: the message must not change with every step.
    return Claim(
        "True",
        Reason.GRACE_TOO_SHORT,
        f"an eviction would lose steps: one step and a save take about {math.ceil(needed_s / 60)} min, and the pods' "
        f"terminationGracePeriodSeconds is {grace_s}; a greater one in spec.scheduling applies from the next attempt",
    )


def sound(driver: Driver | None, running: Claim) -> Claim:
    """Return whether `spec.watch` has no findings about the learning."""
    if driver is None or driver.status is None or running.status != "True":
        return Claim("Unknown", Reason.NOT_TRAINING, "the learning is checked only while the job trains")
    found = driver.status.findings
    if not found:
        return Claim("True", Reason.NOTHING_FOUND, "spec.watch has no findings")
    said = (f"{finding.name}: {finding.evidence}. {finding.advice}" for finding in found)
    return Claim("False", ",".join(finding.name for finding in found), " ".join(said))


def _failed_since_checkpoint(history: JobHistory) -> AttemptRecord | None:
    """Return the newest failed attempt after which no checkpoint has been saved."""
    ended = [attempt for attempt in history.attempts if not attempt.is_open]
    last = ended[-1] if ended else None
    if last is None or last.exit_code in (Exit.OK, Exit.PREEMPTED):
        return None
    newest = history.attempts[-1]
    return last if newest.checkpoint == last.checkpoint else None


def _ending(history: JobHistory) -> Claims:
    outcome = history.outcome
    if outcome is None:
        unknown = Claim("Unknown", Reason.IN_PROGRESS, "the job has not ended")
        return {Type.SUCCEEDED: unknown, Type.FAILED: unknown}
    said = (outcome.reason, outcome.message)
    yes, no = Claim("True", *said), Claim("False", *said)
    return {Type.SUCCEEDED: yes, Type.FAILED: no} if outcome.succeeded else {Type.SUCCEEDED: no, Type.FAILED: yes}


def _summary(history: JobHistory, running: Claim) -> Claims:
    """Return Ready, Reconciling and Stalled as kstatus, Flux and Argo CD read them: Ready also when all is done."""
    outcome, said = history.outcome, (running.reason, running.message)
    if outcome is not None and not outcome.succeeded:
        said = (outcome.reason, outcome.message)
        return _triple("False", "False", "True", said)
    if outcome is not None:
        return _triple("True", "False", "False", (outcome.reason, outcome.message))
    if running.reason == Reason.SUSPENDED:
        return _triple("False", "False", "False", said)
    if running.reason == Reason.RUNNING:
        return _triple("True", "False", "False", said)
    return _triple("False", "True", "False", said)


def _triple(ready: str, reconciling: str, stalled: str, said: tuple[str, str]) -> Claims:
    kinds = (Type.READY, Type.RECONCILING, Type.STALLED)
    return {kind: _condition(status, said) for kind, status in zip(kinds, (ready, reconciling, stalled), strict=True)}


def _condition(status: str, said: tuple[str, str]) -> Claim:
    assert status in ("True", "False", "Unknown")
    return Claim(status, *said)  # type: ignore[arg-type]  # the assertion above
