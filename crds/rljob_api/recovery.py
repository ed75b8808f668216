"""The recovery policy: who is restarted, when, and when to stop trying.

Called by the operator, by `rljob run`, and by the driver itself when nobody else looks after it; all of them get the
same answer because it depends only on the driver's status, the spec and the time. Deciding again on the same facts
gives the same orders, and an order that the driver has accepted is not given again: generations tell them apart.

    engine dead ──► restart it, after a back-off ──► no restarts left: go on with the others
                                                             │ none left
                    give up ◄── no restarts left ◄── restart the driver, after a back-off
                                                     (in a cluster: twice on the warm one, then on a new one)

An engine's restarts are counted since the last completed step, the driver's since the last new checkpoint.
"""

import signal
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rljob_api.control import Decision, EngineState, EngineStatus, Status
from rljob_api.exits import Exit
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
        """Return the wait after so many restarts [s]."""
        if restarts == 0:
            return 0.0
        # 2**16 s is beyond any cap; without the bound a long history overflows a float.
        return min(self.longest_s, self.first_s * 2.0 ** min(restarts - 1, 16))


BACKOFF = Backoff()

NEVER_RETRIED = frozenset({Exit.USAGE, Exit.BAD_MANIFEST, Exit.BAD_INPUT, Exit.DIVERGED, Exit.BUDGET_EXHAUSTED})
"""another start would end the same way"""

ATTEMPTS_ON_A_CLUSTER = 2
"""without a new checkpoint, before the cluster itself is suspected and another one is built"""

SHORTEST_STALL_S = 60.0
STALL_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class History:
    """What happened so far in this attempt of the driver."""

    step: int
    """steps done"""
    decisions: tuple[Decision, ...]
    """restarts of engines that the driver has accepted"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the driver that has ended."""

    number: int
    exit_code: int
    """as in `Exit`; negative: the signal that ended it"""
    checkpoint: int | None
    """step of the newest checkpoint at its end"""


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


def after_exit(attempts: Sequence[Attempt], recovery: Recovery, backoff: Backoff = BACKOFF) -> Ending:
    """Return what follows the end of the last of the attempts, oldest first.

    What another start cannot change (a bad manifest, bad input) is never retried; trouble outside the run is, up to
    `driver_restarts` times without a new checkpoint.
    """
    last = attempts[-1]
    reason = reason_of(last.exit_code)
    if last.exit_code in (Exit.OK, Exit.PREEMPTED):
        return Done(reason)
    for code in NEVER_RETRIED:
        if last.exit_code == code:
            return GiveUp(reason, code)
    fruitless = _fruitless(attempts)
    if fruitless > recovery.driver_restarts:
        return GiveUp(f"{reason}; attempts without a new checkpoint: {fruitless}", Exit.BUDGET_EXHAUSTED)
    return RestartDriver(reason, backoff.delay_s(fruitless - 1))


def wants_new_cluster(on_cluster: Sequence[Attempt]) -> bool:
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


def _fruitless(attempts: Sequence[Attempt]) -> int:
    """Count the attempts since the newest checkpoint, the one that made it included."""
    count = 0
    for attempt in reversed(attempts):
        if attempt.checkpoint != attempts[-1].checkpoint:
            break
        count += 1
    return count


def signs_of_life(status: Status) -> Hashable:
    """Return what changes while a driver is alive: its heartbeat, and engines that come and go."""
    return status.heartbeat, tuple((engine.name, engine.generation, engine.state) for engine in status.engines)


def stall_deadline_s(status: Status | None, recovery: Recovery, shortest_s: float = SHORTEST_STALL_S) -> float:
    """Return how long a driver may go without a sign of life before it counts as stalled [s].

    Until its first step, and while no engine serves, it is allowed the time that an engine gets to start. None stands
    for a driver that never answered.
    """
    longest_phase_s = status.longest_phase_seconds if status else 0.0
    adaptive_s = max(shortest_s, STALL_FACTOR * longest_phase_s)
    if status is None or not status.progress.last_step_seconds or not _is_served(status.engines):
        return max(adaptive_s, recovery.start_timeout_seconds)
    return adaptive_s


def _is_served(engines: Sequence[EngineStatus]) -> bool:
    return any(engine.state in (EngineState.HEALTHY, EngineState.SUSPECT) for engine in engines)
