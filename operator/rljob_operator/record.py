"""The job's status: what the operator remembers, and what people and programs read. Pure, both ways.

    status ─► memory_of ─► (attempts.advance) ─► status_of ─► status

Everything that the operator has to know after a restart is in here; it keeps nothing else.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from rljob_api import control
from rljob_api.control import EngineState
from rljob_api.exits import Exit
from rljob_api.recovery import RestartEngine
from rljob_api.sections import Placement, Spec
from rljob_api.status import (
    MOST_ENGINES,
    MOST_STEPS_OF_RECOVERY,
    Condition,
    ConditionType,
    Engine,
    Engines,
    LastCheckpoint,
    Phase,
    Progress,
    RecoveryStep,
    Status,
    StepSeconds,
)
from rljob_api.status import Attempt as AttemptRecord
from rljob_api.topology import REST, topology
from rljob_operator.conditions import Condition as Claim
from rljob_operator.conditions import Conditions, Reason
from rljob_operator.identity import JOB_LABEL, RAY_GROUP_LABEL
from rljob_operator.memory import Attempt, Memory, Outcome
from rljob_operator.world import Driver, Job

LONGEST_TEXT = 2000
"""of a message; a job has many, and etcd has little room [characters]"""


def memory_of(status: Status) -> Memory:
    """Return what a status remembers."""
    return Memory(tuple(_remembered(record) for record in status.attempts), _outcome(status))


def refused_status(old: Status, job: Job, conditions: Conditions, now: float) -> Status:
    """Return the status of a job that is not admitted; what is remembered stays."""
    return old.model_copy(
        update={
            "observed_generation": job.generation,
            "phase": Phase.INVALID,
            "phase_since": _phase_since(old, Phase.INVALID, now),
            "conditions": _conditions(old, conditions, job.generation, now),
        }
    )


def status_of(
    old: Status,
    job: Job,
    spec: Spec,
    memory: Memory,
    driver: Driver | None,
    conditions: Conditions,
    restarts: Sequence[RestartEngine],
    directory: str,
    now: float,
) -> Status:
    """Return the whole status; `restarts` are the orders that are given to engines now, `directory` is the run's."""
    status = driver.status if driver else None
    started = next((attempt.started for attempt in memory.attempts if attempt.started is not None), None)
    return Status(
        observed_generation=job.generation,
        phase=phase(memory, conditions),
        phase_since=_phase_since(old, phase(memory, conditions), now),
        conditions=_conditions(old, conditions, job.generation, now),
        attempt=memory.attempt.number if memory.attempt else 0,
        gpus=topology(spec).gpus,
        start_time=old.start_time or (_time(started) if started is not None else None),
        completion_time=_time(memory.outcome.at) if memory.outcome else None,
        progress=_progress(status, memory) or old.progress,
        curve=(status.progress.curve if status else ()) or old.curve,
        engines=_engines(job, spec, status if _has_engines(memory) else None),
        directory=directory,
        last_checkpoint=_checkpoint(old, status, now) or old.last_checkpoint,
        attempts=tuple(_recorded(attempt) for attempt in memory.attempts),
        recovery=_recovery(old, memory, restarts, now),
    )


def with_progress_of(status: Status, old: Status) -> Status:
    """Return the status with the progress as it was, to be written when something else changes or later."""
    return status.model_copy(update={"progress": old.progress, "curve": old.curve}) if old.progress else status


def phase(memory: Memory, conditions: Conditions) -> Phase:
    """Return one word for people, from the conditions."""
    if memory.outcome is not None:
        return Phase.SUCCEEDED if memory.outcome.succeeded else Phase.FAILED
    training = conditions[ConditionType.TRAINING]
    match training.reason:
        case Reason.SUSPENDED:
            return Phase.SUSPENDED
        case Reason.DRAINING:
            return Phase.SUSPENDING
        case Reason.RUNNING:
            degraded = conditions[ConditionType.DEGRADED].reason == Reason.ENGINE_DOWN
            return Phase.RECOVERING if degraded else Phase.TRAINING
        case Reason.STARTING | Reason.CLUSTER_NOT_READY if len(memory.attempts) == 1:
            return Phase.STARTING if training.reason == Reason.STARTING else Phase.PROVISIONING
        case _:
            return Phase.RECOVERING


def _phase_since(old: Status, phase: Phase, now: float) -> datetime:
    return old.phase_since if old.phase is phase and old.phase_since else _time(now)


def _remembered(record: AttemptRecord) -> Attempt:
    return Attempt(
        number=record.number,
        cluster=record.cluster,
        start_after=int(record.start_after.timestamp()),
        started=int(record.started.timestamp()) if record.started else None,
        verdict=next((code for code in Exit if code == record.verdict), None),
        ended=int(record.ended.timestamp()) if record.ended else None,
        exit_code=record.exit_code,
        reason=record.reason or "",
        checkpoint=record.checkpoint_step,
    )


def _recorded(attempt: Attempt) -> AttemptRecord:
    return AttemptRecord(
        number=attempt.number,
        cluster=attempt.cluster,
        start_after=_time(attempt.start_after),
        started=_time(attempt.started) if attempt.started is not None else None,
        verdict=int(attempt.verdict) if attempt.verdict is not None else None,
        ended=_time(attempt.ended) if attempt.ended is not None else None,
        exit_code=attempt.exit_code,
        reason=_cut(attempt.reason) or None,
        checkpoint_step=attempt.checkpoint,
    )


def _outcome(status: Status) -> Outcome | None:
    for condition in status.conditions:
        if condition.type in (ConditionType.SUCCEEDED, ConditionType.FAILED) and condition.status == "True":
            at = status.completion_time or condition.last_transition_time
            succeeded = condition.type is ConditionType.SUCCEEDED
            return Outcome(succeeded, condition.reason, condition.message, int(at.timestamp()))
    return None


def _conditions(old: Status, wanted: Conditions, generation: int, now: float) -> tuple[Condition, ...]:
    before = {condition.type: condition for condition in old.conditions}
    return tuple(
        before[kind] if _stays(before.get(kind), condition) else _written(kind, condition, before, generation, now)
        for kind, condition in wanted.items()
    )


def _stays(before: Condition | None, now: Claim) -> bool:
    """Return whether what was found of the learning is still the last that is known: nobody trains any more."""
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


def _progress(status: control.Status | None, memory: Memory) -> Progress | None:
    if status is None or (status.progress.step == 0 and not status.progress.last_step_seconds):
        return None
    told = status.progress
    accuracy = told.accuracy_sampled[-1].accuracy if told.accuracy_sampled else None
    return Progress(
        step=told.step,
        reward=_rounded(told.reward_mean),
        accuracy=_rounded(accuracy),
        perplexity=_rounded(told.perplexities[-1]) if told.perplexities else None,
        held_out_perplexity=_rounded(told.held_out_perplexity[-1].perplexity) if told.held_out_perplexity else None,
        evaluation_sets={name: round(each.sampled, 4) for name, each in told.evaluation_sets.items()} or None,
        tokens_per_second=told.tokens_per_second,
        step_seconds=_step_seconds(told.last_step_seconds),
        weight_version=told.weight_version,
        eta_seconds=None if told.eta_seconds is None or memory.outcome else max(0, round(told.eta_seconds)),
    )


def _step_seconds(phases: Mapping[str, float]) -> StepSeconds | None:
    """Return the phases of a step that people look at; no driver waits for the others for long."""
    if not phases:
        return None
    named = {name: round(phases[name], 3) for name in ("rollout", "train", "publish") if name in phases}
    return StepSeconds(total=round(sum(phases.values()), 3), **named)


def _has_engines(memory: Memory) -> bool:
    return memory.outcome is None and memory.attempt is not None and memory.attempt.is_open


def _engines(job: Job, spec: Spec, status: control.Status | None) -> Engines:
    group = "workers" if spec.placement is Placement.COLOCATED else "rollout"
    engines = status.engines if status else ()
    return Engines(
        desired=len(topology(spec).engines),
        ready=sum(engine.state is EngineState.HEALTHY for engine in engines),
        selector=f"{JOB_LABEL}={job.name},{RAY_GROUP_LABEL} in ({group},{group}{REST})",
        items=tuple(
            Engine(
                name=engine.name,
                state=engine.state,
                since=_time(engine.since),
                version=engine.version,
                restarts=engine.restarts,
                last_error=_cut(engine.last_error) if engine.last_error else None,
            )
            for engine in engines[:MOST_ENGINES]
        ),
    )


def _checkpoint(old: Status, status: control.Status | None, now: float) -> LastCheckpoint | None:
    saved = status.checkpoint if status else None
    if saved is None:
        return None
    known = old.last_checkpoint
    told = known is not None and (known.step, known.path) == (saved.step, saved.path)
    time = known.time if told and known else _time(now)
    return LastCheckpoint(step=saved.step, path=saved.path, verified=saved.verified, time=time)


def _recovery(old: Status, memory: Memory, restarts: Sequence[RestartEngine], now: float) -> tuple[RecoveryStep, ...]:
    """Return what was done about failures, and once what is done about them now."""
    steps = [
        _step(now, "RestartEngine", f"{each.engine} generation {each.generation}", each.reason) for each in restarts
    ]
    attempt, before = memory.attempt, memory.attempts[-2:-1]
    if attempt is not None and attempt.number > old.attempt and before and before[0].exit_code != Exit.PREEMPTED:
        action: Action = "RestartDriver" if attempt.cluster == before[0].cluster else "ReplaceCluster"
        steps.append(_step(now, action, f"attempt {attempt.number}", before[0].reason))
    if memory.outcome is not None and not memory.outcome.succeeded and old.completion_time is None:
        steps.append(_step(now, "GiveUp", "job", memory.outcome.message))
    known = {(step.action, step.target, step.cause) for step in old.recovery}
    new = [step for step in steps if (step.action, step.target, step.cause) not in known]
    return (*old.recovery, *new)[-MOST_STEPS_OF_RECOVERY:]


Action = Literal["RestartEngine", "RestartDriver", "ReplaceCluster", "GiveUp"]


def _step(time: float, action: Action, target: str, cause: str) -> RecoveryStep:
    return RecoveryStep(time=_time(time), action=action, target=target, cause=_cut(cause) or "unknown")


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
