"""The recovery policy: what is restarted, when, and when to give up.

Called by the operator, by `rljob run`, and by the driver itself when it has no supervisor. All get the same answer,
which depends only on the driver's status, the spec and the time. The same facts give the same orders. Generations
identify orders, so an accepted order is not given again.

    engine dead ──► restart it, after a back-off ──► no restarts left: continue with the others
                                                             │ none left
                    give up ◄── no restarts left ◄── restart the driver, after a back-off
                                                     (in a cluster: twice on the warm one, then on a new one)

An engine's restarts are counted since the last completed step, the driver's since the last new checkpoint. Lost pods
and preemptions have a separate budget, counted since the last step or checkpoint that no earlier attempt reached.
"""

import signal
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rljob_api.control import OF_EACH_STEP, Decision, EngineState, EngineStatus, Status
from rljob_api.exits import Cause, Exit
from rljob_api.sections import Recovery


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a restart: nothing before the first, then doubling."""

    first_s: float = 1.0
    """before the second restart [s]"""
    longest_s: float = 60.0
    window_s: float = 600.0
    """restarts of an engine that are older do not count [s]"""

    def delay_s(self, restarts: int) -> float:
        """Return the wait after this number of restarts [s]."""
        if restarts == 0:
            return 0.0
        # 2**16 s is beyond any cap; without the bound a long history overflows a float.
        return min(self.longest_s, self.first_s * 2.0 ** min(restarts - 1, 16))


BACKOFF = Backoff()

NEVER_RETRIED = frozenset(
    {Exit.USAGE, Exit.BAD_MANIFEST, Exit.BAD_INPUT, Exit.DIVERGED, Exit.BUDGET_EXHAUSTED, Exit.IN_USE}
)
"""another start would end the same way, or take the run directory from the driver that has it now"""

ATTEMPTS_ON_A_CLUSTER = 2
"""without a new checkpoint, before the cluster itself is suspected and another one is built"""

SHORTEST_STALL_S = 60.0
STALL_FACTOR = 10.0
START_FACTOR = 2.0
"""of the longest phase of all, mostly the start: how long a step may be silent that is far shorter"""
HEALING_S = 60.0
"""beside that, at least: until a driver notices that an engine or the router hangs, 45 s at most by default [s]"""
HEALING_FACTOR = 1.5
"""of the time in which all probes of an engine fail, which recovery.health... sets"""


@dataclass(frozen=True, slots=True)
class History:
    """What happened so far in this attempt of the driver."""

    step: int
    """steps done"""
    decisions: tuple[Decision, ...]
    """restarts of engines that the driver has accepted"""


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """One start of the driver that has ended."""

    number: int
    exit_code: int
    """as in `Exit`; negative: the signal that ended it"""
    checkpoint: int | None
    """step of the newest checkpoint at its end"""
    step: int | None = None
    """steps done at its end"""
    cause: Cause = Cause.APPLICATION


@dataclass(frozen=True, slots=True)
class RestartEngine:
    """Replace the dead process of an engine by one of this generation."""

    engine: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Leave this engine dead until a step has been completed without it."""

    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class RestartDriver:
    """Start the driver again, from its newest checkpoint."""

    reason: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run has failed."""

    reason: str
    code: Exit


@dataclass(frozen=True, slots=True)
class Done:
    """The run has ended as it should."""

    reason: str


Order = RestartEngine | Exhausted | RestartDriver
Ending = RestartDriver | GiveUp | Done


def history_of(status: Status) -> History:
    """Return what the policy needs to know of a driver's past."""
    return History(step=status.progress.step, decisions=status.decisions)


def decide(
    engines: Sequence[EngineStatus], history: History, recovery: Recovery, now: float, backoff: Backoff = BACKOFF
) -> tuple[Order, ...]:
    """Return what to do about dead engines at time `now` [unix s]; nothing while all is well or a back-off runs.

    RestartDriver is among the orders only if every engine is dead and out of restarts; whether the driver has restarts
    left is for `after_exit` to say.
    """
    dead = [engine for engine in engines if engine.state is EngineState.DEAD]
    orders = [order for engine in dead if (order := _about(engine, history, recovery, now, backoff)) is not None]
    exhausted = [order for order in orders if isinstance(order, Exhausted)]
    if engines and len(exhausted) == len(engines):
        return (*orders, RestartDriver("no engine is left: " + "; ".join(e.reason for e in exhausted), delay_s=0.0))
    return tuple(orders)


def _about(
    engine: EngineStatus, history: History, recovery: Recovery, now: float, backoff: Backoff
) -> RestartEngine | Exhausted | None:
    restarts = [decision for decision in history.decisions if decision.engine == engine.name]
    if any(decision.generation > engine.generation for decision in restarts):
        return None
    error = engine.last_error or "no error known"
    spent = sum(decision.step >= history.step for decision in restarts)
    if spent >= recovery.engine_restarts:
        return Exhausted(engine.name, f"{engine.name} died {spent + 1} times since step {history.step}: {error}")
    recent = sum(decision.time > engine.since - backoff.window_s for decision in restarts)
    if now < engine.since + backoff.delay_s(recent):
        return None
    return RestartEngine(engine.name, engine.generation + 1, error)


def exhausted(engines: Sequence[EngineStatus], history: History, recovery: Recovery) -> dict[str, str]:
    """Return by name why engines are dead and are not restarted before another step is done."""
    found = decide(engines, history, recovery, now=0.0)
    return {order.engine: order.reason for order in found if isinstance(order, Exhausted)}


def after_exit(attempts: Sequence[EndedAttempt], recovery: Recovery, backoff: Backoff = BACKOFF) -> Ending:
    """Return what follows the end of the last of the attempts, oldest first.

    What another start cannot change (a bad manifest, bad input) is never retried. Other failures are, up to
    `driver_restarts` times without a new checkpoint, and lost pods up to `infrastructure_restarts` times without
    progress.
    """
    last = attempts[-1]
    reason = reason_of(last.exit_code)
    is_infrastructure = last.cause is Cause.INFRASTRUCTURE
    if last.exit_code == Exit.OK or (last.exit_code == Exit.PREEMPTED and not is_infrastructure):
        return Done(reason)
    for code in NEVER_RETRIED:
        if last.exit_code == code:
            return GiveUp(reason, code)
    failures = failures_since_progress(attempts, last.cause)
    budget = recovery.infrastructure_restarts if is_infrastructure else recovery.driver_restarts
    if failures > budget:
        missing = "progress" if is_infrastructure else "a new checkpoint"
        return GiveUp(f"{reason}; attempts without {missing}: {failures}", Exit.BUDGET_EXHAUSTED)
    return RestartDriver(reason, backoff.delay_s(failures - 1))


def failures_since_progress(attempts: Sequence[EndedAttempt], cause: Cause) -> int:
    """Count the failures of this kind since the last progress, the attempt that made it included.

    A new checkpoint is progress. For the infrastructure a step is, too: a run that fails at the same step again and
    again reaches no new checkpoint, but one that loses pods gets further.
    """
    failures, before = 0, Reached()
    for attempt in attempts:
        if before.is_behind(attempt, counts_steps=cause is Cause.INFRASTRUCTURE):
            failures = 0
        failures += attempt.cause is cause
        before = before.with_end_of(attempt)
    return failures


@dataclass(frozen=True, slots=True)
class Reached:
    """The newest checkpoint and the last step that any of some attempts reached."""

    checkpoint: int = 0
    step: int = 0

    def is_behind(self, attempt: EndedAttempt, counts_steps: bool) -> bool:
        """Return whether the attempt has a newer checkpoint or, if steps count, a later step."""
        return (attempt.checkpoint or 0) > self.checkpoint or (counts_steps and (attempt.step or 0) > self.step)

    def with_end_of(self, attempt: EndedAttempt) -> "Reached":
        """Return what is reached with this attempt."""
        return Reached(max(self.checkpoint, attempt.checkpoint or 0), max(self.step, attempt.step or 0))


def reached(attempts: Sequence[EndedAttempt]) -> Reached:
    """Return what any of the attempts reached."""
    found = Reached()
    for attempt in attempts:
        found = found.with_end_of(attempt)
    return found


def wants_new_cluster(on_cluster: Sequence[EndedAttempt]) -> bool:
    """Return whether the next attempt should get another cluster than the one that all of these, oldest first, had.

    A restart on the warm cluster takes seconds, so it comes first; what it does not cure may be the cluster's fault.
    """
    return _fruitless(on_cluster) >= ATTEMPTS_ON_A_CLUSTER


def reason_of(exit_code: int) -> str:
    """Return in words why a process ended: the meaning of its code, or the signal that a negative one stands for."""
    if exit_code < 0:
        return f"killed by {_signal_name(-exit_code)}"
    known = {code.value: code.meaning for code in Exit}
    return known.get(exit_code, f"ended with exit code {exit_code}")


def _signal_name(number: int) -> str:
    known = {member.value: member.name for member in signal.Signals}
    return known.get(number, f"signal {number}")


def _fruitless(attempts: Sequence[EndedAttempt]) -> int:
    """Count the attempts since the newest checkpoint, the one that made it included."""
    count = 0
    for attempt in reversed(attempts):
        if attempt.checkpoint != attempts[-1].checkpoint:
            break
        count += 1
    return count


def drain_seconds(status: Status) -> float | None:
    """Return how long a drain takes at most: the rest of a step and a save [s]; None: no step has been measured.

    A save counts once one has been measured.
    """
    phases = status.progress.last_step_seconds
    if not phases:
        return None
    return sum(seconds for phase, seconds in phases.items() if phase != "checkpoint") + (status.save_seconds or 0.0)


def signs_of_life(status: Status) -> Hashable:
    """Return what changes while a driver is alive: its heartbeat, and engines that come and go."""
    return status.heartbeat, tuple((engine.name, engine.generation, engine.state) for engine in status.engines)


def stall_deadline_s(status: Status | None, recovery: Recovery, shortest_s: float = SHORTEST_STALL_S) -> float:
    """Return how long a driver may go without a sign of life before it counts as stalled [s].

    Until its first step, and while no engine serves, it is allowed the time that an engine gets to start. A phase that
    each step has is measured by such phases: a start takes a minute where a step takes a second. None stands for a
    driver that never answered.
    """
    longest_s = status.longest_phase_seconds if status else 0.0
    adaptive_s = max(shortest_s, STALL_FACTOR * longest_s)
    if status is None or not status.progress.last_step_seconds or not _is_served(status.engines):
        return max(adaptive_s, recovery.start_timeout_seconds)
    of_steps_s = status.longest_step_phase_seconds
    if of_steps_s and status.phase in OF_EACH_STEP:
        return min(adaptive_s, max(STALL_FACTOR * of_steps_s, START_FACTOR * longest_s + _healing_s(recovery)))
    return adaptive_s


def _healing_s(recovery: Recovery) -> float:
    """Return how long a step may wait until its driver notices that an engine or the router hangs [s]."""
    probe_s = recovery.health_interval_seconds + recovery.health_timeout_seconds
    return max(HEALING_S, HEALING_FACTOR * recovery.health_failures * probe_s)


def stalled(
    status: Status | None, silent_s: float, recovery: Recovery, shortest_s: float = SHORTEST_STALL_S
) -> str | None:
    """Return in words that a driver makes no progress; None: it does. `silent_s`: time without a sign of life [s].

    A driver may also be alive and never end a phase, for example a rollout whose requests are answered for ever.
    """
    phase, where = (status.phase, f"; {status.stacks}" if status.stacks else "") if status else ("start", "")
    if silent_s > stall_deadline_s(status, recovery, shortest_s):
        return f"no progress for {silent_s:.0f} s in phase {phase}{where}"
    if status is None or phase == "evaluate" or phase not in status.progress.last_step_seconds:
        return None
    # What a phase has waited for judges, tools and volumes is not its own time; how much of that, the manifest says.
    waited_s = min(status.waited_seconds, recovery.outage_seconds)
    lasts_s = status.heartbeat - status.phase_since
    if lasts_s > max(recovery.start_timeout_seconds, STALL_FACTOR * status.longest_phase_seconds) + waited_s:
        longest = f"the longest phase before took {status.longest_phase_seconds:.0f} s"
        return f"phase {phase} is alive and has not ended for {lasts_s:.0f} s; {longest}"
    return None


def _is_served(engines: Sequence[EngineStatus]) -> bool:
    return any(engine.state in (EngineState.HEALTHY, EngineState.SUSPECT) for engine in engines)
