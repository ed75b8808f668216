"""Keeps a run going on this machine: starts the driver, follows its status, applies the recovery policy.

    events: Seen, Ended, Interrupted, or nothing for a while
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

from rljob_api.control import EngineOrder, RunState, Status
from rljob_api.exits import Exit
from rljob_api.recovery import (
    BACKOFF,
    SHORTEST_STALL_S,
    Attempt,
    Backoff,
    Done,
    Exhausted,
    GiveUp,
    RestartDriver,
    RestartEngine,
    after_exit,
    decide,
    history_of,
    reason_of,
    signs_of_life,
    stall_deadline_s,
)
from rljob_api.sections import Recovery
from rljob_cli.driver import Driver, DriverUnreachableError, Ended, Event, Interrupted, Seen
from rljob_cli.vitals import PATIENCE_S, Vitals

log = logging.getLogger(__name__)

LONGEST_LOOK_S = 20.0
"""after a longer time without looking at the driver it was us who stood still [s]"""


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
    """between two looks at a driver that says nothing [s]"""
    backoff: Backoff = BACKOFF
    shortest_stall_s: float = SHORTEST_STALL_S
    vitals_patience_s: float = PATIENCE_S


TIMING = Timing()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended."""

    exit_code: int
    reason: str


class Supervisor:
    """Supervises one run, from the first attempt to the outcome."""

    def __init__(
        self,
        start: Callable[[int, SimpleQueue[Event]], Driver],
        clean: Callable[[], None],
        recovery: Recovery,
        display: Display,
        first_attempt: int = 1,
        timing: Timing = TIMING,
    ) -> None:
        """`start(attempt, events)` starts a driver; `clean()` removes what one leaves behind."""
        self._start = start
        self._clean = clean
        self._recovery = recovery
        self._display = display
        self._first_attempt = first_attempt
        self._timing = timing
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._interrupts = 0
        self._checkpoint: int | None = None

    def interrupt(self, signal_number: int) -> None:
        """Save and end; the second time, end at once. For signal handlers."""
        self._events.put(Interrupted(signal_number))

    def run(self) -> Outcome:
        """Supervise until the run has ended."""
        attempts: list[Attempt] = []
        while True:
            number = self._first_attempt + len(attempts)
            exit_code = self._attempt(number)
            self._clean()
            attempts.append(Attempt(number, exit_code, self._checkpoint))
            log.info("action=ended attempt=%d exit_code=%d", number, exit_code)
            if self._interrupts:
                return _after_interrupt(exit_code, self._interrupts)
            match after_exit(attempts, self._recovery, self._timing.backoff):
                case Done(reason):
                    return Outcome(exit_code, reason)
                case GiveUp(reason, code):
                    return Outcome(code, reason)
                case RestartDriver(reason, delay_s):
                    self._display.note(f"attempt {number}: {reason}; starting again in {delay_s:g} s")
                    if self._interrupted_within(delay_s):
                        return Outcome(Exit.PREEMPTED, "interrupted before another attempt")

    def _attempt(self, number: int) -> int:
        """Return the exit code of one start of the driver, or the code for why we ended it."""
        driver = self._start(number, self._events)
        attempt = _Attempt(driver, self._recovery, self._display, self._timing)
        while True:
            match self._next_event():
                case Ended(exit_code):
                    return attempt.ended(exit_code)
                case Seen(pid, status) if pid == driver.pid:
                    self._checkpoint = status.checkpoint.step if status.checkpoint else self._checkpoint
                    attempt.seen(status)
                case Interrupted():
                    self._interrupts += 1
                    attempt.interrupted(self._interrupts)
                case Seen() | None:
                    attempt.look()

    def _next_event(self) -> Event | None:
        try:
            return self._events.get(timeout=self._timing.tick_s)
        except Empty:
            return None

    def _interrupted_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                event = self._events.get(timeout=left)
            except Empty:
                return False
            if isinstance(event, Interrupted):
                return True
        return False


class _Attempt:
    """What the supervisor knows of, and does about, one driver."""

    def __init__(self, driver: Driver, recovery: Recovery, display: Display, timing: Timing) -> None:
        self.verdict: int | None = None
        """why we ended the driver; None: we did not"""
        self._driver = driver
        self._recovery = recovery
        self._display = display
        self._timing = timing
        self._vitals = Vitals(driver.pid, timing.tick_s)
        self._status: Status | None = None
        self._beat_at = self._looked_at = time.monotonic()
        self._ordered: set[tuple[str, int]] = set()
        self._given_up: set[str] = set()
        self._draining = False
        self._drain_told = False

    def seen(self, status: Status) -> None:
        """Take in a status of the driver."""
        if self._status is None or signs_of_life(status) != signs_of_life(self._status):
            # Our own clock, not the driver's heartbeat: the two need not agree.
            self._beat_at = time.monotonic()
        begun_now = self._status is None or self._status.began is None
        failed_now = status.state is RunState.FAILED and (
            self._status is None or self._status.state is not status.state
        )
        self._status = status
        self._display.update(status)
        if begun_now and status.began:
            self._display.note(status.began)
        if failed_now and status.exit_reason:
            self._display.note(status.exit_reason)
        self.look()

    def ended(self, exit_code: int) -> int:
        """Return the code for the end of the driver's process, and tell the error that its log ends with, if it has
        told nobody: it failed before it could, or on the way out.
        """
        if self.verdict is not None:
            return self.verdict
        if exit_code not in (Exit.OK, Exit.PREEMPTED) and not self._has_ended and (words := self._driver.last_words()):
            self._display.note(words)
        return exit_code

    def interrupted(self, times: int) -> None:
        """Save and end; the second time, or when there is nothing to save yet, end at once."""
        self._draining = True
        if times > 1:
            self._end(Exit.INTERRUPTED, "interrupted again: ending without saving")
        elif self._status is None:
            self._end(Exit.PREEMPTED, "interrupted before the driver had begun")
        else:
            self._display.note("saving after this step, then ending; interrupt again to end without saving")
            self.look()

    def look(self) -> None:
        """Do what is due."""
        if self.verdict is not None:
            return
        self._forget_own_pause()
        silent_s = time.monotonic() - self._beat_at
        if silent_s > stall_deadline_s(self._status, self._recovery, self._timing.shortest_stall_s):
            phase = self._status.phase if self._status else "start"
            self._end(Exit.STALLED, f"no sign of life for {silent_s:.0f} s in phase {phase}", with_stacks=True)
        elif not self._has_ended and (lost := self._vitals.lost(self._timing.vitals_patience_s)):
            self._end(Exit.LOST_PEER, f"{lost} is gone")
        else:
            if self._draining:
                self._drain()
            if self._status is not None:
                self._heal(self._status)

    @property
    def _has_ended(self) -> bool:
        """Whether the driver takes everything down in good order."""
        return self._status is not None and self._status.state in (RunState.FINISHED, RunState.FAILED)

    def _forget_own_pause(self) -> None:
        """Do not take our own pause (Ctrl-Z, a frozen container) for the driver's silence."""
        now = time.monotonic()
        pause_s = now - self._looked_at
        if pause_s > self._timing.tick_s + LONGEST_LOOK_S:
            self._beat_at += pause_s
        self._looked_at = now

    def _drain(self) -> None:
        if self._drain_told:
            return
        try:
            self._driver.drain()
            self._drain_told = True
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
        # The status that shows the order as accepted may still be on its way.
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
            self._display.note(f"{reason}; going on without it until a step is done")

    def _end(self, verdict: int, text: str, with_stacks: bool = False) -> None:
        self.verdict = verdict
        self._display.note(text)
        log.info("action=kill pid=%d verdict=%d reason=%r", self._driver.pid, verdict, text)
        if with_stacks:
            self._driver.kill_with_stacks()
        else:
            self._driver.kill()


def _after_interrupt(exit_code: int, interrupts: int) -> Outcome:
    if exit_code < 0:
        return Outcome(Exit.INTERRUPTED if interrupts > 1 else Exit.FAILED, f"while ending: {reason_of(exit_code)}")
    return Outcome(exit_code, reason_of(exit_code))
