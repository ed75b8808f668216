"""What is reported of an engine: since when it is in its state, and each failure with what became of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_api.control import Incident
from rljob_trainer.processes.kept_process import LOG_FOLLOWS

Report = Callable[[Incident, str], None]
"""gets an incident and its cause in a word, for example `ProcessExited`"""


@dataclass
class Health:
    """The health of one engine. `report` is called once for each failure: when it is over, or when it is closed.

    A failure lasts until the engine serves again; another one before that is part of it.
    """

    engine: str
    report: Report
    now: Callable[[], float] = time.time
    """gives unix time [s]"""
    since: float = field(init=False)
    """when it came into its state [unix s]"""
    last_answer: float = field(default=0.0, init=False)
    """its start, or its last good probe [unix s]"""
    last_error: str = field(default="", init=False)
    """of its last failure, with the end of its log"""
    _open: tuple[Incident, str] | None = field(default=None, init=False)
    """the present failure and its cause"""

    def __post_init__(self) -> None:
        self.since = self.now()

    def moved(self) -> None:
        """Note that its state or its process is another one."""
        self.since = self.now()

    def answered(self) -> None:
        """Note a sign of life."""
        self.last_answer = self.now()

    def died(self, generation: int, cause: str, error: str, failed_at: float | None) -> None:
        """Note a failure; `failed_at` is unix time, as far as it is known [s]."""
        now = self.now()
        self.last_error = error
        if self._open is None:
            incident = Incident(
                time=now,
                engine=self.engine,
                generation=generation,
                error=without_log(error),
                detect_seconds=None if failed_at is None else now - failed_at,
            )
            self._open = incident, cause

    def rerouted(self) -> None:
        """Note that the router sends it nothing more."""
        if self._open is not None:
            incident, cause = self._open
            self._open = incident.model_copy(update={"reroute_seconds": self.now() - incident.time}), cause

    def returned(self) -> None:
        """Note that it serves the current weights again: the failure is over."""
        if self._open is not None:
            incident, cause = self._open
            self._open = incident.model_copy(update={"return_seconds": self.now() - incident.time}), cause
            self.close()

    def close(self) -> None:
        """Report a failure that is not over as it is: the engine leaves."""
        if self._open is not None:
            self.report(*self._open)
            self._open = None


def without_log(error: str) -> str:
    """Return an error without the lines of the engine's log."""
    return error.partition(LOG_FOLLOWS)[0]
