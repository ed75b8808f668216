"""Which attempt of a job's driver there should be: begin one, notice its end, and what follows. Pure.

                 ┌────────────── restart: on the warm cluster, or on a new one ─────────────┐
                 ▼                                                                          │
    begin ─► submitted, runs ─► ended by itself, or by our verdict ─► recovery.after_exit ──┤
                                                                                            └─► outcome
All decisions about failures are `rljob_api.recovery`'s.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from rljob_api import recovery
from rljob_api.control import RunState
from rljob_api.exits import Exit, camel_case
from rljob_api.recovery import BACKOFF, Done, GiveUp, RestartDriver
from rljob_api.sections import Recovery, Spec
from rljob_api.status import MOST_ATTEMPTS
from rljob_operator import desired
from rljob_operator.identity import cluster_name, submission_id
from rljob_operator.memory import Attempt, Memory, Outcome
from rljob_operator.world import ALIVE, ENDED, Driver, DriverState, Job, World, is_deleting

FIRST_ANSWER_S = 30.0
"""time for a driver to answer, after the operator has begun to look, before nothing is expected of it [s]"""

LAST_WORDS = "; its last words: "
LONGEST_REASON = 500
"""[characters]"""


def advance(memory: Memory, job: Job, spec: Spec, world: World, now: float) -> Memory:
    """Return the memory as it should be at `now` [unix s], given what is there."""
    if memory.outcome is not None:
        return memory
    if memory.attempt is not None and memory.attempt.is_open:
        memory = _with_newest(memory, _observed(memory, memory.attempt, job, spec, world, now))
    if memory.attempt is None:
        return memory if spec.scheduling.suspend else _begin(memory, job, spec, None, now, 0.0)
    if memory.attempt.is_open:
        return _with_newest(memory, _judged(memory, job, spec, world, now))
    return _followed(memory, job, spec, world, now)


def driver_of(attempt: Attempt, job: Job, world: World) -> Driver | None:
    """Return what is known of the driver of this attempt; what is known of an older one says nothing about it."""
    wanted = submission_id(job.name, job.uid, attempt.number)
    return world.driver if world.driver is not None and world.driver.submission_id == wanted else None


def deadline(memory: Memory, spec: Spec) -> float | None:
    """Return when the job has to be over [unix s]; None: there is no deadline, or nothing has started."""
    limit_s = spec.scheduling.active_deadline_seconds
    started = next((attempt.started for attempt in memory.attempts if attempt.started is not None), None)
    return None if limit_s is None or started is None else started + limit_s


def _is_over(memory: Memory, spec: Spec, now: float) -> bool:
    due = deadline(memory, spec)
    return due is not None and now >= due


def _observed(memory: Memory, attempt: Attempt, job: Job, spec: Spec, world: World, now: float) -> Attempt:
    """Return the open attempt with what is to be seen of its driver."""
    driver, cluster = driver_of(attempt, job, world), world.child("RayCluster", attempt.cluster)
    if attempt.started is not None and (cluster is None or is_deleting(cluster)):
        return _ended(attempt, Exit.LOST_PEER, f"RayCluster {attempt.cluster} is gone", now)
    if attempt.started is None and spec.scheduling.suspend and (driver is None or driver.state not in (*ALIVE, *ENDED)):
        return _ended(attempt, Exit.PREEMPTED, "suspended before the driver had begun", now)
    if attempt.started is None and _is_over(memory, spec, now):
        return _ended(attempt, Exit.STALLED, "the active deadline has passed", now)
    if driver is None or driver.state is DriverState.UNKNOWN:
        return attempt
    if driver.state is DriverState.ABSENT:
        if attempt.started is None:
            return attempt
        return _ended(attempt, Exit.LOST_PEER, "Ray no longer knows the driver: the head was restarted", now)
    if driver.state is DriverState.PENDING:
        return attempt
    checkpoint = driver.status.checkpoint if driver.status else None
    attempt = replace(
        attempt,
        started=int(now) if attempt.started is None else attempt.started,
        checkpoint=checkpoint.step if checkpoint else attempt.checkpoint,
    )
    return _ended(attempt, *_end_of(driver), now) if driver.state in ENDED else attempt


def _end_of(driver: Driver) -> tuple[int, str]:
    """Return the exit code of a driver that has ended, and why it ended in words."""
    told = driver.status.exit_reason if driver.status else None
    if driver.exit_code is not None:
        return driver.exit_code, told or _with_last_words(recovery.reason_of(driver.exit_code), driver.message)
    if driver.state is DriverState.SUCCEEDED:
        return Exit.OK, recovery.reason_of(Exit.OK)
    if driver.state is DriverState.STOPPED:
        return Exit.FAILED, "stopped through Ray"
    # Ray gives no exit code when the command never ran, or its supervisor was lost with the head.
    first_line = driver.message.strip().partition("\n")[0]
    return Exit.LOST_PEER, first_line or "Ray lost the driver"


def _with_last_words(reason: str, message: str) -> str:
    """Return the reason, and what the driver wrote last if Ray's message, after a line of its own, ends with that."""
    _, *log = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    return f"{reason}{LAST_WORDS}{log[-1]}" if log else reason


def _with_end_of(last: Attempt, reason: str) -> str:
    """Return why the job has failed, with what is known of its last attempt besides the meaning of the exit code."""
    known = last.reason.removeprefix(recovery.reason_of(last.exit_code or 0)).removeprefix(LAST_WORDS)
    return f"{reason}: {known}" if known else reason


def _ended(attempt: Attempt, exit_code: int, reason: str, now: float) -> Attempt:
    """Return the attempt as ended; a verdict of ours explains the end better than what Ray saw of it."""
    if attempt.verdict is not None:
        return replace(attempt, ended=int(now), exit_code=int(attempt.verdict))
    return replace(attempt, ended=int(now), exit_code=int(exit_code), reason=reason[:LONGEST_REASON])


def _judged(memory: Memory, job: Job, spec: Spec, world: World, now: float) -> Attempt:
    """Return the open attempt, with a verdict if it has to be ended."""
    attempt = memory.attempt
    assert attempt is not None
    driver = driver_of(attempt, job, world)
    if attempt.verdict is not None or attempt.started is None or driver is None:
        return attempt
    if _is_over(memory, spec, now):
        return replace(attempt, verdict=Exit.STALLED, reason="the active deadline has passed")
    if driver.state not in ALIVE:
        return attempt
    if _is_mute_while_suspended(driver, spec, now):
        return replace(attempt, verdict=Exit.PREEMPTED, reason="suspended before the driver had begun")
    silent_s = now - max(driver.since, driver.beat_at, attempt.started)
    if silent_s > recovery.stall_deadline_s(driver.status, spec.recovery):
        phase = driver.status.phase if driver.status else "start"
        return replace(attempt, verdict=Exit.STALLED, reason=f"no sign of life for {silent_s:.0f} s in phase {phase}")
    return _without_engines(attempt, driver, spec.recovery, now)


def _is_mute_while_suspended(driver: Driver, spec: Spec, now: float) -> bool:
    """Return whether the job is suspended and there is nobody who could save."""
    return spec.scheduling.suspend and driver.status is None and now - driver.since > FIRST_ANSWER_S


def _without_engines(attempt: Attempt, driver: Driver, policy: Recovery, now: float) -> Attempt:
    if driver.status is None or driver.status.state in (RunState.FINISHED, RunState.FAILED):
        return attempt
    orders = recovery.decide(driver.status.engines, recovery.history_of(driver.status), policy, now)
    lost = next((order for order in orders if isinstance(order, RestartDriver)), None)
    return attempt if lost is None else replace(attempt, verdict=Exit.LOST_PEER, reason=lost.reason[:LONGEST_REASON])


def _followed(memory: Memory, job: Job, spec: Spec, world: World, now: float) -> Memory:
    """Return the memory after the end of the newest attempt: with an outcome, with another attempt, or as it was."""
    last = memory.attempt
    assert last is not None and last.ended is not None
    if _is_over(memory, spec, now) and last.exit_code != Exit.OK:
        return replace(memory, outcome=Outcome(False, "DeadlineExceeded", "the active deadline has passed", int(now)))
    if last.exit_code == Exit.PREEMPTED:
        # It saved and stopped because it was told to: by us, or by a node that goes away. Neither is a failure.
        return memory if spec.scheduling.suspend else _begin(memory, job, spec, world, now, 0.0)
    match recovery.after_exit(_failures(memory.attempts), spec.recovery, BACKOFF):
        case Done():
            told = world.driver.status.result if world.driver and world.driver.status else None
            return replace(memory, outcome=Outcome(True, "Completed", told or "all steps are done", last.ended))
        case GiveUp(reason, code):
            return replace(memory, outcome=Outcome(False, camel_case(code), _with_end_of(last, reason), last.ended))
        case RestartDriver(_, delay_s):
            return memory if spec.scheduling.suspend else _begin(memory, job, spec, world, last.ended, delay_s)


def _begin(memory: Memory, job: Job, spec: Spec, world: World | None, now: float, delay_s: float) -> Memory:
    last = memory.attempt
    number = 1 if last is None else last.number + 1
    warm = last is not None and world is not None and _can_be_used_again(last.cluster, memory, job, world)
    cluster = last.cluster if warm and last is not None else cluster_name(job.name, job.uid, number)
    checkpoint = last.checkpoint if last is not None else None
    new = Attempt(number, cluster, start_after=math.ceil(now + delay_s), checkpoint=checkpoint)
    return replace(memory, attempts=(*memory.attempts, new)[-MOST_ATTEMPTS:])


def _can_be_used_again(cluster: str, memory: Memory, job: Job, world: World) -> bool:
    """Return whether the next attempt should run on this cluster."""
    there = world.child("RayCluster", cluster)
    if there is None or is_deleting(there):
        return False
    if not desired.is_built_for(there, job):
        return False
    failures = _failures(attempt for attempt in memory.attempts if attempt.cluster == cluster)
    return not failures or not recovery.wants_new_cluster(failures)


def _failures(ended: Iterable[Attempt]) -> list[recovery.Attempt]:
    """Return the attempts that count for the recovery policy: being preempted is no failure."""
    return [attempt.for_policy() for attempt in ended if attempt.exit_code != Exit.PREEMPTED]


def _with_newest(memory: Memory, attempt: Attempt) -> Memory:
    return replace(memory, attempts=(*memory.attempts[:-1], attempt))
