"""The driver's status in one place: the main thread and the background loop write it, long-polls wait for it.

Thread-safe; knows neither HTTP nor the parts that report to it.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rljob_api.control import OF_EACH_STEP, Decision, Incident, Status

KEPT_INCIDENTS = 100
KEPT_DECISIONS = 200


class StatusStore:
    """Holds the newest Status; every change makes a new revision and wakes the watchers."""

    def __init__(self, status: Status, clock: Callable[[], float] = time.time) -> None:
        # Reentrant: a signal handler may change the status while the main thread is changing it.
        self._lock = threading.RLock()
        self._clock = clock
        self._status = status
        self._watchers: list[Callable[[], object]] = []

    @property
    def status(self) -> Status:
        """The newest status."""
        with self._lock:
            return self._status

    def update(self, **changes: object) -> None:
        """Set these fields of the status; raise ValidationError if one does not exist or has a wrong type."""
        self._change(lambda status: changes)

    def begin(self, phase: str) -> None:
        """Note that the main thread enters another phase."""
        now = self._clock()
        self._change(lambda status: {"phase": phase, "phase_since": now, "heartbeat": now, **_ended(status, now)})

    def beat(self) -> None:
        """Note a sign of life of the main thread; makes no revision, so it may be called often."""
        with self._lock:
            self._status = self._status.model_copy(update={"heartbeat": self._clock()})

    def saved(self, seconds: float) -> None:
        """Note how long a checkpoint took until it was complete."""
        self._change(lambda status: {"save_seconds": max(status.save_seconds or 0.0, seconds)})

    def report(self, incident: Incident) -> None:
        """Add an incident, or complete the one of the same engine and generation."""
        self._change(lambda status: {"incidents": _merged(status.incidents, incident)[-KEPT_INCIDENTS:]})

    def record(self, decision: Decision) -> None:
        """Add a decision that was accepted."""
        self._change(lambda status: {"decisions": (*status.decisions, decision)[-KEPT_DECISIONS:]})

    @contextmanager
    def watching(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` at every change inside the context, in the thread that made it: it must return at once."""
        with self._lock:
            self._watchers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._watchers.remove(wake)

    def _change(self, changes_to: Callable[[Status], dict[str, object]]) -> None:
        with self._lock:
            current = self._status
            changes = {**changes_to(current), "revision": current.revision + 1}
            # model_copy would take any field and any value.
            self._status = Status.model_validate({**dict(current), **changes}, extra="forbid")
            watchers = tuple(self._watchers)
        for wake in watchers:
            wake()


def _ended(status: Status, now: float) -> dict[str, object]:
    if not status.phase_since:
        return {}
    seconds = now - status.phase_since
    ended: dict[str, object] = {"longest_phase_seconds": max(status.longest_phase_seconds, seconds)}
    if status.phase in OF_EACH_STEP:
        ended["longest_step_phase_seconds"] = max(status.longest_step_phase_seconds, seconds)
    return ended


def _merged(incidents: tuple[Incident, ...], incident: Incident) -> tuple[Incident, ...]:
    others = [old for old in incidents if (old.engine, old.generation) != (incident.engine, incident.generation)]
    return (*others, incident)
