"""What the world around a run has cost it, by cause, and what the run waits for. Any part may note it, from any thread.

A judge, an environment, an engine, a file system: what fails there costs a sample, a group or some time, and is
counted. What stays away for longer than `recovery.outageSeconds` ends the attempt, not the run: `AwayError`.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.gpu_metrics import LostMetrics

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
TRIES: Final = 3
"""of a request that fails while others succeed"""
CREDIT: Final = 20
MOST_CREDITS: Final = 8


class AwayError(RunError, RuntimeError):
    """What a run needs from outside was away for too long; another attempt may find it. The text names it."""

    exit = Exit.AWAY


class Cause(StrEnum):
    """What was lost, and to whom."""

    AGENT = "Agent"
    """trajectories whose agent failed"""
    AGENT_TIMEOUT = "AgentTimeout"
    """trajectories whose agent did not end in its time"""
    GENERATE = "Generate"
    """samples that a generate function, its environment or its tools did not make"""
    REFUSED = "Refused"
    """samples of prompts that engines refused"""
    JUDGE = "Judge"
    """samples that could not be judged, and have no `failureScore`"""
    GROUP = "Group"
    """samples whose group had too few others left to compare them with"""
    STORAGE = "Storage"
    """operations on files that failed and were repeated"""
    CLEANING = "Cleaning"
    """old checkpoints and drafts that could not be deleted yet"""


class Losses:
    """The account of one driver."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._waits: dict[object, str] = {}
        self._last: Exception | None = None
        self._restarts = self._cut_offs = 0
        self._waited_s, self._waits_since = 0.0, 0.0

    def note(self, cause: Cause, number: int = 1, error: Exception | None = None) -> None:
        """Count what was lost, and to which error."""
        with self._lock:
            self._counts[cause.value] += number
            self._last = error or self._last

    def restarted(self) -> None:
        """Count a trajectory of an agent that is started again."""
        with self._lock:
            self._restarts += 1

    def cut_off(self, requests: int) -> None:
        """Count requests of agents that the end of a gateway has cut off."""
        with self._lock:
            self._cut_offs += requests

    @property
    def last(self) -> Exception | None:
        """The error that cost something last."""
        with self._lock:
            return self._last

    def lost(self) -> LostMetrics:
        """Return what was lost since the last call, as metrics of a step."""
        counts = self.take()
        storage = sum(counts.get(cause, 0) for cause in (Cause.STORAGE, Cause.CLEANING))
        with self._lock:
            restarts, cut_offs = self._restarts, self._cut_offs
            self._restarts = self._cut_offs = 0
        return LostMetrics(
            lost_samples=sum(counts.values()) - storage,
            storage_errors=storage,
            losses=counts,
            agent_restarts=restarts,
            agent_cut_offs=cut_offs,
        )

    def take(self) -> Mapping[str, int]:
        """Return what was lost since the last call, by cause."""
        with self._lock:
            counts, self._counts = +self._counts, Counter()
        return dict(counts)

    def waits(self, who: object, what: str | None) -> None:
        """Note that `who` waits for something outside the run, in words; None: no longer."""
        with self._lock:
            self._waited_s, self._waits_since = self._so_far(), self._clock()
            if what is None:
                self._waits.pop(who, None)
            else:
                self._waits[who] = what

    @property
    def waited_s(self) -> float:
        """How long the run has waited for something outside so far [s]."""
        with self._lock:
            return self._so_far()

    def _so_far(self) -> float:
        return self._waited_s + (self._clock() - self._waits_since if self._waits else 0.0)

    @property
    def waiting_for(self) -> str | None:
        """What the run waits for, if anything; of several, the first that is still awaited."""
        with self._lock:
            return next(iter(self._waits.values()), None)


@dataclass
class Trouble:
    """A request that has failed so far."""

    since: float
    """on the clock of the outage [s]"""
    tries: int = 0
    waited_s: float = 0.0
    """in pauses between the tries"""
    last_s: float = 0.0
    """when it failed last"""
    beside: int = 0
    """how often others succeeded between two of its failures"""


@dataclass(eq=False)
class Outage:
    """Distinguishes an outage of a service from the failure of one request. One for each service; thread-safe.

    others succeed between its failures, where the service cannot be reached twice: once may be the end of an outage
                                                           ─► it fails alone: given up after `tries`
    none has, and the service has worked before             ─► it is away: waited for, up to `longest_s`
    none ever has                                          ─► it may never work: given up after `tries`

    The last request of a step has no others beside it. So a request is also given up on credit: one for every `CREDIT`
    that have succeeded, unless the service cannot be reached at all.
    """

    what: str
    """in words"""
    losses: Losses = field(default_factory=Losses)
    longest_s: float = 600.0
    tries: int = TRIES
    has_worked: bool = False
    """whether an earlier attempt has used it"""
    alive: Callable[[], None] = lambda: None
    """called before each pause"""
    clock: Callable[[], float] = time.monotonic
    _last_good: float = field(default=float("-inf"), init=False)
    _successes: int = field(default=0, init=False)
    """that no request was given up for yet"""

    def worked(self) -> None:
        """Note that a request has succeeded."""
        self.has_worked, self._last_good = True, self.clock()
        self._successes = min(self._successes + 1, MOST_CREDITS * CREDIT)
        self.losses.waits(self, None)

    def trouble(self) -> Trouble:
        """Return a request that has not failed yet."""
        return Trouble(self.clock())

    def pause_s(self, trouble: Trouble, reason: str, *, is_away: bool = False) -> float | None:
        """Note another failure of a request; return the time before the next try [s], or None: it is given up.

        `is_away`: the service cannot be reached at all, whether it ever worked or not. Raises AwayError when no request
        has succeeded for `longest_s`.
        """
        now = self.clock()
        if trouble.tries == 0:
            trouble.since = now
        elif self._last_good >= trouble.last_s:
            trouble.beside, trouble.since, trouble.waited_s = trouble.beside + 1, now, 0.0
        trouble.tries, trouble.last_s = trouble.tries + 1, now
        if trouble.tries >= self.tries:
            if trouble.beside > is_away or not (self.has_worked or is_away):
                return None
            if trouble.tries == self.tries and self._successes >= CREDIT and (trouble.beside or not is_away):
                self._successes -= CREDIT
                return None
            failed_s = max(now - trouble.since, trouble.waited_s)
            if failed_s > self.longest_s:
                raise AwayError(f"{self.what} has not worked for {failed_s:.0f} s (recovery.outageSeconds): {reason}")
            self.losses.waits(self, f"{self.what}: {reason}")
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(trouble.tries - 1, 16), LONGEST_PAUSE_S) * random.uniform(0.5, 1.5)
        trouble.waited_s += pause_s
        self.alive()
        return pause_s
