"""Reports the failure of an engine, and what became of it, to the status store and the report."""

from collections.abc import Callable
from dataclasses import dataclass

from rljob_api import control
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.engines.records import Incident
from rljob_trainer.processes.kept_process import LOG_FOLLOWS


@dataclass(frozen=True, slots=True)
class IncidentReporter:
    """Is called by the engine pool."""

    status_store: StatusStore
    record: Callable[[control.Incident, str], None]
    """the report's: of an incident, and its cause"""

    def __call__(self, incident: Incident) -> None:
        """Report the incident without the lines of the engine's log."""
        reported = control.Incident(
            time=incident.at,
            engine=incident.engine,
            generation=incident.generation,
            error=incident.detail.partition(LOG_FOLLOWS)[0],
            detect_seconds=incident.detected_s,
            reroute_seconds=incident.rerouted_s,
            return_seconds=incident.returned_s,
        )
        self.status_store.report(reported)
        self.record(reported, incident.cause)
