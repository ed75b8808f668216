"""The job's status: the operator's memory, and what people and programs read. Pure; writes and reads it.

    status ─► history_of ─► (attempts.advance) ─► status_of ─► status

All that the operator has to know after a restart is in the status; it keeps nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from math import isfinite

from rljob_api import control
from rljob_api.adjustments import in_words
from rljob_api.control import EngineState, Goodput, TokenRates
from rljob_api.exits import Cause, Exit
from rljob_api.foreign_text import first_bytes, printable
from rljob_api.known_failure import KnownFailure
from rljob_api.recovery import RestartEngine
from rljob_api.sections import INT32, Placement
from rljob_api.sizing.topology import REST, topology
from rljob_api.status import (
    MOST_ENGINES,
    MOST_LOSSES,
    MOST_PARTS,
    MOST_STEPS_OF_RECOVERY,
    Action,
    AttemptFailure,
    AttemptStatus,
    Condition,
    ConditionType,
    JobEngine,
    JobEngines,
    JobProgress,
    LastCheckpoint,
    Phase,
    Queue,
    RecoveryStep,
    Status,
    StepSeconds,
)
from rljob_operator.children.pod_swaps import PodSwap
from rljob_operator.identity import JOB_LABEL, RAY_GROUP_LABEL
from rljob_operator.job import storage
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.status.goodput import at_the_end, lifetime, sentence, since_creation
from rljob_operator.world.claims import Claim, Claims, Reason
from rljob_operator.world.history import AttemptRecord, JobHistory, Outcome
from rljob_operator.world.world import Driver

NOT_WAITING = (Reason.FINISHED, Reason.SUSPENDED, Reason.DIRECTORY_IN_USE)
"""reasons of QuotaReserved of a job that neither holds room nor waits for it"""
LONGEST_TEXT = 2000
"""of a message; a job has many, and etcd has little room [bytes]"""
LONGEST_CAUSE = 40
"""characters of the name of a cause of losses"""


def history_of(status: Status) -> JobHistory:
    """Return the history that a status holds."""
    started = int(status.start_time.timestamp()) if status.start_time else None
    return JobHistory(tuple(_remembered(record) for record in status.attempts), _outcome(status), started)


def refused_status(old: Status, generation: int, conditions: Claims, release: str, now: float) -> Status:
    """Return the status of a job that is not admitted; the rest of the status stays."""
    return old.model_copy(
        update={
            "observed_generation": generation,
            "release": release,
            "phase": Phase.INVALID,
            "phase_since": _phase_since(old, Phase.INVALID, now),
            "conditions": _conditions(old, conditions, generation, now),
        }
    )


def objected_status(old: Status, generation: int, why: Claim, now: float) -> Status:
    """Return the status of a job that has begun, and whose manifest cannot be read any more; the rest stays."""
    before = {each.type: Claim(each.status, each.reason, each.message) for each in old.conditions}
    conditions = _conditions(old, {**before, ConditionType.ADMITTED: why}, generation, now)
    return old.model_copy(update={"observed_generation": generation, "conditions": conditions})


def failed_status(old: Status, generation: int, why: str, now: float) -> Status:
    """Return the status of a job that the operator cannot plan: kstatus shows it as failed; the rest stays."""
    before = {each.type: Claim(each.status, each.reason, each.message) for each in old.conditions}
    said = (Reason.OPERATOR_ERROR, f"the operator cannot plan this job: {why}")
    named = {ConditionType.READY: Claim("False", *said), ConditionType.STALLED: Claim("True", *said)}
    return old.model_copy(update={"conditions": _conditions(old, {**before, **named}, generation, now)})


def status_of(
    job: AdmittedJob,
    history: JobHistory,
    driver: Driver | None,
    conditions: Claims,
    repairs: Sequence[RestartEngine | PodSwap],
    now: float,
) -> Status:
    """Return the whole status; `repairs` are the engines that are ordered to restart now, and the pods to swap."""
    old, reported = job.status, driver.status if driver else None
    return Status(
        observed_generation=job.generation,
        phase=phase(history, conditions),
        phase_since=_phase_since(old, phase(history, conditions), now),
        conditions=_conditions(old, conditions, job.generation, now),
        attempt=history.attempt.number if history.attempt else 0,
        restarts=_restarts(history),
        gpus=topology(job.spec).gpus,
        start_time=_time(history.started) if history.started is not None else None,
        completion_time=_time(history.outcome.at) if history.outcome else None,
        progress=_progress(reported, job, history),
        curve=(reported.progress.curve if reported else ()) or old.curve,
        engines=_engines(job, reported if _has_engines(history) else None),
        directory=storage.directory(job),
        began=_cut(reported.began or "") or None if reported else old.began,
        release=old.release if history.outcome else job.defaults.release,
        queue=queue(job, conditions, now),
        resolved=old.resolved if history.outcome else job.resolved,
        last_checkpoint=_checkpoint(old, reported, now) or old.last_checkpoint,
        attempts=tuple(recorded(attempt) for attempt in history.attempts),
        recovery=_recovery(job, history, repairs, reported, now),
    )


def queue(job: AdmittedJob, conditions: Claims, now: float) -> Queue | None:
    """Return the place of a job in the queue."""
    decision, claim, old = job.queue_decision, conditions.get(ConditionType.QUOTA_RESERVED), job.status.queue
    if decision is None or claim is None or claim.reason in NOT_WAITING:
        return None
    before = job.status.condition(ConditionType.QUOTA_RESERVED)
    stays = before is not None and before.status == claim.status
    return Queue(
        position=decision.position,
        since=old.since if old is not None and stays else _time(now),
        first_since=_time(decision.first_since) if decision.first_since is not None else None,
        preempted_for=decision.preempted_for,
        engines=job.spec.rollout.engines if decision.is_reserved else None,
        granted=decision.granted if decision.is_reserved else None,
        revoked=decision.revoked or None,
        retry_at=_time(decision.retry_at) if decision.retry_at else None,
    )


def with_progress_of(status: Status, old: Status) -> Status:
    """Return the status with the progress as it was, to be written when something else changes or later.

    A job that waits makes progress in the queue.
    """
    if old.progress:
        status = status.model_copy(update={"progress": old.progress, "curve": old.curve})
    before = {each.type: each for each in old.conditions}
    # Findings quote numbers that change with every step.
    found = (_with_numbers_of(each, before.get(each.type)) for each in status.conditions)
    status = status.model_copy(update={"conditions": tuple(found)})
    if status.queue is None or old.queue is None or status.queue.position is None or old.queue.position is None:
        return status
    conditions = tuple(_with_message_of(each, before.get(each.type)) for each in status.conditions)
    return status.model_copy(update={"queue": old.queue, "conditions": conditions})


def _with_numbers_of(condition: Condition, old: Condition | None) -> Condition:
    """Return a condition with its old message if it follows the findings, and these are the same by name."""
    follows = condition.type in (ConditionType.SOUND, ConditionType.DEGRADED)
    is_same = old is not None and (condition.status, condition.reason) == (old.status, old.reason)
    return _with_message_of(condition, old) if follows and is_same else condition


def _with_message_of(condition: Condition, old: Condition | None) -> Condition:
    return condition if old is None else condition.model_copy(update={"message": old.message})


def phase(history: JobHistory, conditions: Claims) -> Phase:
    """Return one word for people, from the conditions."""
    if history.outcome is not None:
        return Phase.SUCCEEDED if history.outcome.succeeded else Phase.FAILED
    training = conditions[ConditionType.TRAINING]
    match training.reason:
        case Reason.NOT_ADMITTED:
            return Phase.INVALID
        case Reason.SUSPENDED:
            return Phase.SUSPENDED
        case Reason.DIRECTORY_IN_USE | Reason.QUEUED | Reason.NEVER_FITS:
            return Phase.QUEUED
        case Reason.DRAINING:
            return Phase.SUSPENDING
        case Reason.RUNNING:
            degraded = conditions[ConditionType.DEGRADED].reason == Reason.ENGINE_DOWN
            return Phase.RECOVERING if degraded else Phase.TRAINING
        case Reason.STARTING | Reason.CLUSTER_NOT_READY if len(history.attempts) == 1:
            return Phase.STARTING if training.reason == Reason.STARTING else Phase.PROVISIONING
        case _:
            return Phase.RECOVERING


def _phase_since(old: Status, phase: Phase, now: float) -> datetime:
    return old.phase_since if old.phase is phase and old.phase_since else _time(now)


def _remembered(record: AttemptStatus) -> AttemptRecord:
    return AttemptRecord(
        number=record.number,
        cluster=record.cluster,
        start_after=int(record.start_after.timestamp()),
        started=int(record.started.timestamp()) if record.started else None,
        verdict=next((code for code in Exit if code == record.verdict), None),
        ended=int(record.ended.timestamp()) if record.ended else None,
        exit_code=record.exit_code,
        reason=record.reason or "",
        checkpoint=record.checkpoint_step,
        step=record.step,
        cause=record.cause,
        failure=KnownFailure(**record.failure.model_dump()) if record.failure else None,
        ending_since=int(record.ending_since.timestamp()) if record.ending_since else None,
        resume=record.resume,
        nodes=record.nodes or {},
        asked=int(record.asked.timestamp()) if record.asked else None,
    )


def recorded(attempt: AttemptRecord) -> AttemptStatus:
    return AttemptStatus(
        number=attempt.number,
        cluster=attempt.cluster,
        start_after=_time(attempt.start_after),
        started=_time(attempt.started) if attempt.started is not None else None,
        verdict=int(attempt.verdict) if attempt.verdict is not None else None,
        ended=_time(attempt.ended) if attempt.ended is not None else None,
        exit_code=attempt.exit_code,
        reason=_cut(attempt.reason) or None,
        checkpoint_step=attempt.checkpoint,
        step=attempt.step,
        cause=attempt.cause,
        failure=AttemptFailure(**asdict(attempt.failure)) if attempt.failure else None,
        ending_since=_time(attempt.ending_since) if attempt.ending_since is not None else None,
        resume=attempt.resume,
        nodes=dict(attempt.nodes) or None,
        asked=_time(attempt.asked) if attempt.asked is not None else None,
    )


def _outcome(status: Status) -> Outcome | None:
    for condition in status.conditions:
        if condition.type in (ConditionType.SUCCEEDED, ConditionType.FAILED) and condition.status == "True":
            at = status.completion_time or condition.last_transition_time
            succeeded = condition.type is ConditionType.SUCCEEDED
            return Outcome(succeeded, condition.reason, condition.message, int(at.timestamp()))
    return None


def _conditions(old: Status, wanted: Claims, generation: int, now: float) -> tuple[Condition, ...]:
    before = {condition.type: condition for condition in old.conditions}
    return tuple(
        before[kind] if _stays(before.get(kind), condition) else _written(kind, condition, before, generation, now)
        for kind, condition in wanted.items()
    )


def _stays(before: Condition | None, now: Claim) -> bool:
    """Return whether the last findings about the learning stay, because the job no longer trains."""
    return (
        before is not None
        and before.type is ConditionType.SOUND
        and before.status != "Unknown"
        and now.reason == Reason.NOT_TRAINING
    )


def _written(
    kind: ConditionType,
    condition: Claim,
    before: Mapping[ConditionType, Condition],
    generation: int,
    now: float,
) -> Condition:
    same = kind in before and before[kind].status == condition.status
    return Condition(
        type=kind,
        status=condition.status,
        observed_generation=generation,
        last_transition_time=before[kind].last_transition_time if same else _time(now),
        reason=condition.reason,
        message=_cut(condition.message),
    )


def with_cost(history: JobHistory, job: AdmittedJob, driver: Driver | None) -> JobHistory:
    """Return the history of a job that has just ended; its outcome says where the time went."""
    progress = _progress(driver.status if driver else None, job, history)
    if history.outcome is None or progress is None or progress.goodput is None or not job.created:
        return history
    message = f"{history.outcome.message}; {sentence(progress.goodput)}"
    return replace(history, outcome=replace(history.outcome, message=message))


def _progress(status: control.Status | None, job: AdmittedJob, history: JobHistory) -> JobProgress | None:
    """Return the progress of a job as its driver says it, or as it was written last."""
    life, old = lifetime(history, job.created), job.status.progress
    if status is None or (
        status.progress.step == 0 and not status.progress.last_step_seconds and status.waits_for is None
    ):
        if old is None or old.goodput is None or life is None:
            return old
        return old.model_copy(update={"goodput": _goodput(at_the_end(old.goodput, life))})
    now, waits_for = status.progress, status.waits_for
    told = _goodput(now.goodput)
    if told is not None and life is not None:
        told = _goodput(since_creation(told, status.attempt, life, topology(job.spec).gpus))
    accuracy = now.accuracy_sampled[-1].accuracy if now.accuracy_sampled else None
    return JobProgress(
        step=now.step,
        reward=_rounded(now.reward_mean),
        accuracy=_rounded(accuracy),
        perplexity=_rounded(now.perplexities[-1]) if now.perplexities else None,
        held_out_perplexity=_rounded(now.held_out_perplexity[-1].perplexity) if now.held_out_perplexity else None,
        evaluation_sets={_cut(name): round(each.sampled, 4) for name, each in now.evaluation_sets.items()} or None,
        tokens_per_second=_finite(now.tokens_per_second),
        step_seconds=_step_seconds(now.last_step_seconds),
        weight_version=now.weight_version,
        goodput=told,
        losses=_losses(now.losses),
        waits_for=_cut(waits_for) if waits_for and not history.outcome else None,
        eta_seconds=None if now.eta_seconds is None or history.outcome else max(0, round(now.eta_seconds)),
    )


def _losses(losses: Mapping[str, int]) -> dict[str, int] | None:
    """Return what a run has lost, by cause; a driver may say anything."""
    causes = sorted(losses)[:MOST_LOSSES]
    return {printable(cause, LONGEST_CAUSE): min(max(0, losses[cause]), INT32) for cause in causes} or None


def _goodput(goodput: Goodput | None) -> Goodput | None:
    """Return where the time of a run went, in whole seconds; a driver may say anything."""
    if goodput is None:
        return None
    numbers = (goodput.wall_seconds, goodput.effective_share, goodput.lost_gpu_seconds, *goodput.seconds.values())
    if not all(map(isfinite, numbers)):
        return None
    parts = sorted(goodput.seconds.items(), key=lambda part: -part[1])[:MOST_PARTS]
    return Goodput(
        wall_seconds=float(round(goodput.wall_seconds)),
        effective_share=round(goodput.effective_share, 4),
        seconds={printable(part, LONGEST_CAUSE): float(round(seconds)) for part, seconds in parts},
        lost_gpu_seconds=float(round(goodput.lost_gpu_seconds)),
    )


def _finite(rates: TokenRates) -> TokenRates:
    """Return the rates that JSON can hold."""
    known = {name: each if each is not None and isfinite(each) else None for name, each in rates}
    return TokenRates.model_construct(**known)


def _step_seconds(phases: Mapping[str, float]) -> StepSeconds | None:
    """Return the phases of a step that people look at; no driver waits for the others for long."""
    if not phases:
        return None
    named = {name: round(phases[name], 3) for name in ("rollout", "train", "publish") if name in phases}
    return StepSeconds(total=round(sum(phases.values()), 3), **named)


def _restarts(history: JobHistory) -> int:
    """Return how many attempts followed one that was not suspended; attempts that are no longer kept count as such."""
    if history.attempt is None:
        return 0
    suspended = sum(each.for_policy().cause is Cause.SUSPENDED for each in history.attempts[:-1])
    return history.attempt.number - 1 - suspended


def _has_engines(history: JobHistory) -> bool:
    return history.outcome is None and history.attempt is not None and history.attempt.is_open


def _engines(job: AdmittedJob, status: control.Status | None) -> JobEngines:
    group = "workers" if job.spec.placement is Placement.COLOCATED else "rollout"
    engines = status.engines if status else ()
    return JobEngines(
        desired=topology(job.spec).num_engines,
        replicas=sum(engine.state is not EngineState.LEAVING for engine in engines),
        ready=sum(engine.state is EngineState.HEALTHY for engine in engines),
        selector=f"{JOB_LABEL}={job.name},{RAY_GROUP_LABEL} in ({group},{group}{REST})",
        items=tuple(
            JobEngine(
                name=_cut(engine.name),
                state=engine.state,
                since=_time(engine.since),
                version=engine.version,
                restarts=engine.restarts,
                last_error=_cut(engine.last_error) if engine.last_error else None,
            )
            for engine in tuple({each.name: each for each in engines}.values())[:MOST_ENGINES]
        ),
    )


def _checkpoint(old: Status, status: control.Status | None, now: float) -> LastCheckpoint | None:
    saved = status.checkpoint if status else None
    if saved is None:
        return None
    known, path = old.last_checkpoint, _cut(saved.path)
    is_known = known is not None and (known.step, known.path) == (saved.step, path)
    time = known.time if is_known and known else _time(now)
    return LastCheckpoint(step=saved.step, path=path, verified=saved.verified, time=time)


def _recovery(
    job: AdmittedJob,
    history: JobHistory,
    repairs: Sequence[RestartEngine | PodSwap],
    reported: control.Status | None,
    now: float,
) -> tuple[RecoveryStep, ...]:
    """Return what was done about failures, and once what is done about them now."""
    old = job.status
    steps = [
        _step(now, "ReplacePod", each.target, each.reason)
        if isinstance(each, PodSwap)
        else _step(now, "RestartEngine", f"{each.engine} generation {each.generation}", each.reason)
        for each in repairs
    ]
    steps += _of_driver(old.recovery, history.attempt, reported, now)
    abandoned = [each for each in history.attempts[-2:] if each.is_abandoned]
    steps += [_step(now, "DeleteCluster", f"RayCluster {each.cluster}", each.reason) for each in abandoned]
    attempt, before = history.attempt, history.attempts[-2:-1]
    if attempt is not None and attempt.number > old.attempt and before and before[0].exit_code != Exit.PREEMPTED:
        action: Action = "RestartDriver" if attempt.cluster == before[0].cluster else "ReplaceCluster"
        less = history.adjustments(job.spec)
        uses = f"; attempt {attempt.number} uses {in_words(less)}" if less else ""
        steps.append(_step(now, action, f"attempt {attempt.number}", f"{before[0].reason}{uses}"))
    if attempt is not None and attempt.number > old.attempt and attempt.note:
        steps.append(_step(now, "AvoidNodes", f"attempt {attempt.number}", attempt.note))
    if history.outcome is not None and not history.outcome.succeeded and old.completion_time is None:
        steps.append(_step(now, "GiveUp", "job", history.outcome.message))
    known = {
        (step.action, step.target, step.cause)
        for step in old.recovery
        if step.action not in COUNTED_ANEW or attempt is None or step.time >= _time(attempt.started or 0)
    }
    new = [step for step in steps if (step.action, step.target, step.cause) not in known]
    return tuple(_timed((*old.recovery, *new)[-MOST_STEPS_OF_RECOVERY:], attempt, reported, now))


def _of_driver(
    done: Sequence[RecoveryStep], attempt: AttemptRecord | None, reported: control.Status | None, now: float
) -> Iterator[RecoveryStep]:
    """Yield what the driver has done by itself, and what may be new of it: routers, and engines without an operator.

    What is older than all that a full status keeps was there before.
    """
    if attempt is None or reported is None or reported.attempt != attempt.number:
        return
    oldest = done[0].time.timestamp() if len(done) == MOST_STEPS_OF_RECOVERY else 0.0
    for each in reported.decisions:
        if each.by is control.DecidedBy.DRIVER and each.time >= oldest:
            yield _step(now, "RestartEngine", f"{each.engine} generation {each.generation}", each.reason)
    for failed in reported.incidents:
        if failed.engine == control.ROUTER and failed.time >= oldest:
            yield _step(now, "RestartRouter", f"{failed.engine} generation {failed.generation + 1}", failed.error)


COUNTED_ANEW = ("RestartEngine", "RestartRouter")
"""actions whose targets have the same names in each attempt: generations begin at 0 again"""


def _timed(
    steps: Sequence[RecoveryStep], attempt: AttemptRecord | None, reported: control.Status | None, now: float
) -> Iterator[RecoveryStep]:
    """Yield the actions, those with their time after which all is well as the driver reports."""
    if attempt is None or reported is None or reported.attempt != attempt.number:
        yield from steps
        return
    well = {
        *(("RestartEngine", f"{each.name} generation {each.generation}") for each in _healthy(reported)),
        *(("RestartRouter", f"{each.engine} generation {each.generation + 1}") for each in _back(reported)),
    }
    if reported.progress.last_step_seconds and len(_healthy(reported)) == len(reported.engines):
        well |= {(action, f"attempt {attempt.number}") for action in ("RestartDriver", "ReplaceCluster")}
    began = _time(attempt.started or 0)
    for step in steps:
        is_of_now = step.action not in COUNTED_ANEW or step.time >= began
        if step.seconds is None and is_of_now and (step.action, step.target) in well:
            step = step.model_copy(update={"seconds": max(0.0, round(now - step.time.timestamp(), 1))})
        yield step


def _healthy(reported: control.Status) -> list[control.EngineStatus]:
    return [each for each in reported.engines if each.state is EngineState.HEALTHY]


def _back(reported: control.Status) -> list[control.Incident]:
    return [each for each in reported.incidents if each.engine == control.ROUTER and each.return_seconds is not None]


def _step(time: float, action: Action, target: str, cause: str) -> RecoveryStep:
    return RecoveryStep(time=_time(time), action=action, target=target, cause=_cut(cause) or "unknown")


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _cut(text: str) -> str:
    """Return a text of others as it fits into a status: etcd takes 1.5 MiB, and there are hundreds of texts.

    It has no control characters, which a driver may have said.
    """
    clean = printable(text, LONGEST_TEXT)
    whole = len(clean.encode(errors="replace")) <= LONGEST_TEXT
    return clean if whole else f"{first_bytes(clean, LONGEST_TEXT - len('…'.encode()))}…"
