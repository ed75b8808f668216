"""Supervises a run on this machine: starts the driver, follows its status, applies the recovery policy.

    events: StatusReceived, Ended, Interrupted, or nothing for a while
        └─► supervisor ─► recovery.decide ─► orders to the driver
                       ─► recovery.after_exit ─► another attempt, or the outcome

All decisions are `rljob_api.recovery`'s; the operator takes the same ones for runs in a cluster.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from rljob_api.adjustments import Adjustments, adjustments, in_words
from rljob_api.control import EngineOrder, RunState, Status
from rljob_api.exits import Exit
from rljob_api.known_failure import KnownFailure
from rljob_api.recovery import (
    BACKOFF,
    SHORTEST_STALL_S,
    Backoff,
    Done,
    EndedAttempt,
    Exhausted,
    GiveUp,
    RestartDriver,
    RestartEngine,
    after_exit,
    decide,
    history_of,
    reason_of,
    signs_of_life,
    stalled,
)
from rljob_api.sections import Recovery, Spec
from rljob_cli.run.driver import Driver, DriverUnreachableError, Ended, Event, Interrupted, StatusReceived
from rljob_cli.run.ray_processes import PATIENCE_S, RayProcesses

log = logging.getLogger(__name__)

LONGEST_LOOK_S = 20.0
"""after a longer gap between two looks, this process itself was paused [s]"""


class Display(Protocol):
    """What the user sees."""

    def update(self, status: Status) -> None:
        """Show where the run is."""

    def note(self, text: str) -> None:
        """Show a line that stays."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the supervisor itself."""

    tick_s: float = 1.0
    """between two looks at a driver that reports nothing [s]"""
    backoff: Backoff = BACKOFF
    shortest_stall_s: float = SHORTEST_STALL_S
    ray_patience_s: float = PATIENCE_S


TIMING = Timing()


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the run ended."""

    exit_code: int
    reason: str


class Supervisor:
    """Supervises one run, from the first attempt to the outcome."""

    def __init__(
        self,
        start: Callable[[int, Adjustments, SimpleQueue[Event]], Driver],
        clean: Callable[[], None],
        spec: Spec,
        display: Display,
        first_attempt: int = 1,
        timing: Timing = TIMING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start(attempt, adjustments, events)` starts a driver; `clean()` removes what one leaves behind.

        `clock` returns monotonic seconds.
        """
        self._start = start
        self._clean = clean
        self._spec = spec
        self._display = display
        self._first_attempt = first_attempt
        self._timing = timing
        self._clock = clock
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._interrupts = 0
        self._failures: list[str] = []
        self._checkpoint: int | None = None

    def interrupt(self, signal_number: int) -> None:
        """Save and end; the second time, end at once. For signal handlers."""
        self._events.put(Interrupted(signal_number))

    def run(self) -> RunResult:
        """Supervise until the run has ended."""
        attempts: list[EndedAttempt] = []
        while True:
            number = self._first_attempt + len(attempts)
            exit_code = self._attempt(number)
            self._clean()
            attempts.append(EndedAttempt(number, exit_code, self._checkpoint))
            log.info("action=ended attempt=%d exit_code=%d", number, exit_code)
            if self._interrupts:
                return _after_interrupt(exit_code, self._interrupts)
            match after_exit(attempts, self._spec.recovery, self._timing.backoff):
                case Done(reason):
                    return RunResult(exit_code, reason)
                case GiveUp(reason, code):
                    return RunResult(code, reason)
                case RestartDriver(reason, delay_s):
                    uses = f" with {in_words(less)}" if (less := self._adjustments()) else ""
                    self._display.note(f"attempt {number}: {reason}; restarting in {delay_s:g} s{uses}")
                    if self._interrupted_within(delay_s):
                        return RunResult(Exit.PREEMPTED, "interrupted before the next attempt")

    def _attempt(self, number: int) -> int:
        """Return the exit code of one start of the driver, or the code for why we ended it."""
        driver = self._start(number, self._adjustments(), self._events)
        attempt = _DriverSupervision(driver, self._spec.recovery, self._display, self._timing, self._clock)
        while True:
            match self._next_event():
                case Ended(exit_code):
                    code, failure = attempt.ended(exit_code)
                    self._failures += [failure.code] if failure else []
                    return code
                case StatusReceived(pid, status) if pid == driver.pid:
                    self._checkpoint = status.checkpoint.step if status.checkpoint else self._checkpoint
                    attempt.seen(status)
                case Interrupted():
                    self._interrupts += 1
                    attempt.interrupted(self._interrupts)
                case StatusReceived() | None:
                    attempt.look()

    def _adjustments(self) -> Adjustments:
        return adjustments(self._spec, self._failures)

    def _next_event(self) -> Event | None:
        try:
            return self._events.get(timeout=self._timing.tick_s)
        except Empty:
            return None

    def _interrupted_within(self, seconds: float) -> bool:
        deadline = self._clock() + seconds
        while (left := deadline - self._clock()) > 0:
            try:
                event = self._events.get(timeout=left)
            except Empty:
                return False
            if isinstance(event, Interrupted):
                return True
        return False


class _DriverSupervision:
    """The supervision of one driver."""

    def __init__(
        self, driver: Driver, recovery: Recovery, display: Display, timing: Timing, clock: Callable[[], float]
    ) -> None:
        self.verdict: int | None = None
        """why we killed the driver; None: we did not"""
        self._driver = driver
        self._recovery = recovery
        self._display = display
        self._timing = timing
        self._clock = clock
        self._ray = RayProcesses(driver.pid, timing.tick_s, clock)
        self._status: Status | None = None
        self._beat_at = self._looked_at = clock()
        self._ordered: set[tuple[str, int]] = set()
        self._given_up: set[str] = set()
        self._draining = False
        self._is_draining = False

    def seen(self, status: Status) -> None:
        """Take in a status of the driver."""
        if self._status is None or signs_of_life(status) != signs_of_life(self._status):
            # Our own clock, not the driver's heartbeat: the two need not agree.
            self._beat_at = self._clock()
        begun_before = self._status.began if self._status else None
        failed_now = status.state is RunState.FAILED and (
            self._status is None or self._status.state is not status.state
        )
        self._status = status
        self._display.update(status)
        if status.began and status.began != begun_before:
            self._display.note(status.began)
        if failed_now and status.exit_reason:
            self._display.note(status.exit_reason)
        self.look()

    def ended(self, exit_code: int) -> tuple[int, KnownFailure | None]:
        """Return the exit code of the attempt, and the known failure that ended it.

        Notes the error at the end of the driver's log if the driver failed without reporting one, and the failure that
        the logs show, unless it is a general one and the error was noted.
        """
        code = exit_code if self.verdict is None else self.verdict
        if code in (Exit.OK, Exit.PREEMPTED, Exit.INTERRUPTED):
            return code, None
        error = self._status.exit_reason if self._status is not None else None
        if self.verdict is None and not self._has_ended and (error := self._driver.last_words()):
            self._display.note(error)
        from rljob_doctor.known import is_general

        found = self._driver.known_failure()
        if found and not (error and is_general(found)):
            self._display.note(str(found))
        return code, found

    def interrupted(self, times: int) -> None:
        """Save and end; the second time, or when there is nothing to save yet, end at once."""
        self._draining = True
        if times > 1:
            self._end(Exit.INTERRUPTED, "interrupted again: stopping without saving")
        elif self._status is None:
            self._end(Exit.PREEMPTED, "interrupted before the driver started")
        else:
            self._display.note("saving after this step, then stopping; interrupt again to stop without saving")
            self.look()

    def look(self) -> None:
        """Take the actions that are due."""
        if self.verdict is not None:
            return
        self._forget_own_pause()
        silent_s = self._clock() - self._beat_at
        if stall := stalled(self._status, silent_s, self._recovery, self._timing.shortest_stall_s):
            self._end(Exit.STALLED, stall, with_stacks=True)
        elif not self._has_ended and (lost := self._ray.lost(self._timing.ray_patience_s)):
            self._end(Exit.LOST_PEER, f"{lost} is gone")
        else:
            if self._draining:
                self._drain()
            if self._status is not None:
                self._heal(self._status)

    @property
    def _has_ended(self) -> bool:
        """Whether the driver is shutting down in good order."""
        return self._status is not None and self._status.state in (RunState.FINISHED, RunState.FAILED)

    def _forget_own_pause(self) -> None:
        """Do not count our own pause (Ctrl-Z, a frozen container) as the driver's silence."""
        now = self._clock()
        pause_s = now - self._looked_at
        if pause_s > self._timing.tick_s + LONGEST_LOOK_S:
            self._beat_at += pause_s
        self._looked_at = now

    def _drain(self) -> None:
        if self._is_draining:
            return
        try:
            self._driver.drain()
            self._is_draining = True
        except DriverUnreachableError as error:
            log.info("action=drain failed, will try again: %s", error)

    def _heal(self, status: Status) -> None:
        now = time.time()
        for order in decide(status.engines, history_of(status), self._recovery, now, self._timing.backoff):
            match order:
                case RestartEngine():
                    self._restart(order)
                case Exhausted(engine, reason):
                    self._note_given_up(engine, reason)
                case RestartDriver(reason):
                    self._end(Exit.LOST_PEER, reason)
        self._given_up &= {engine.name for engine in status.engines if engine.state == "Dead"}

    def _restart(self, order: RestartEngine) -> None:
        # The status that shows the order as accepted may not have arrived yet.
        if (order.engine, order.generation) in self._ordered:
            return
        try:
            wanted = EngineOrder(generation=order.generation, desired="Running", reason=order.reason)
            self._driver.order(order.engine, wanted)
        except DriverUnreachableError as error:
            log.info("action=restart engine=%s failed, will try again: %s", order.engine, error)
            return
        self._ordered.add((order.engine, order.generation))
        self._display.note(f"{order.engine}: restarted as generation {order.generation} ({order.reason})")

    def _note_given_up(self, engine: str, reason: str) -> None:
        if engine not in self._given_up:
            self._given_up.add(engine)
            self._display.note(f"{reason}; continuing without it until a step completes")

    def _end(self, verdict: int, text: str, with_stacks: bool = False) -> None:
        self.verdict = verdict
        self._display.note(text)
        log.info("action=kill pid=%d verdict=%d reason=%r", self._driver.pid, verdict, text)
        if with_stacks:
            self._driver.kill_with_stacks()
        else:
            self._driver.kill()


def _after_interrupt(exit_code: int, interrupts: int) -> RunResult:
    if exit_code < 0:
        return RunResult(Exit.INTERRUPTED if interrupts > 1 else Exit.FAILED, f"while ending: {reason_of(exit_code)}")
    return RunResult(exit_code, reason_of(exit_code))
