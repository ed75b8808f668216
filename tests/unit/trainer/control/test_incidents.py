"""The failure of an engine in status and report."""

from rljob_api import control
from rljob_trainer.control.incidents import IncidentReporter
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.engines.records import Incident
from rljob_trainer.processes.kept_process import LOG_FOLLOWS

DEAD = Incident("engine-1", 2, "ProcessExited", f"exit code 1{LOG_FOLLOWS}\nout of memory", 100.0, 0.5, 0.25)


def test_an_incident_reaches_status_and_report_without_the_engine_s_log():
    store, recorded = StatusStore(control.Status(attempt=1)), []
    IncidentReporter(store, lambda incident, cause: recorded.append((incident, cause)))(DEAD)
    (incident,) = store.status.incidents
    assert recorded == [(incident, "ProcessExited")]
    assert (incident.engine, incident.generation, incident.error) == ("engine-1", 2, "exit code 1")
    assert (incident.detect_seconds, incident.reroute_seconds, incident.return_seconds) == (0.5, 0.25, None)
