"""What is reported of an engine's failures, and from when its state counts."""

from rljob_api.control import Incident
from rljob_trainer.engines.health import Health
from rljob_trainer.processes.kept_process import LOG_FOLLOWS


class Reported:
    """The health of an engine at a time that the test sets."""

    def __init__(self) -> None:
        self.time = 100.0
        self.said: list[tuple[Incident, str]] = []
        self.health = Health("engine-1", lambda *said: self.said.append(said), lambda: self.time)

    def die(self, error: str = "no answer") -> None:
        self.health.died(2, "ProcessExited", error, self.time - 0.5)


def test_a_failure_is_reported_once_when_the_engine_serves_again() -> None:
    engine = Reported()
    engine.die()
    engine.time = 100.25
    engine.health.rerouted()
    assert engine.said == []
    engine.time = 130.0
    engine.health.returned()
    engine.health.close()
    ((incident, cause),) = engine.said
    assert cause == "ProcessExited"
    assert incident == Incident(
        time=100.0,
        engine="engine-1",
        generation=2,
        error="no answer",
        detect_seconds=0.5,
        reroute_seconds=0.25,
        return_seconds=30.0,
    )


def test_a_failure_that_is_not_over_is_reported_as_it_is() -> None:
    engine = Reported()
    engine.die()
    engine.health.close()
    engine.health.close()
    ((incident, _),) = engine.said
    assert (incident.reroute_seconds, incident.return_seconds) == (None, None)


def test_an_engine_that_is_routed_without_a_failure_reports_nothing() -> None:
    engine = Reported()
    engine.health.rerouted()
    engine.health.returned()
    assert engine.said == []


def test_an_incident_has_no_lines_of_the_engine_s_log() -> None:
    engine = Reported()
    engine.die(f"exit code 1{LOG_FOLLOWS}\nout of memory")
    engine.health.close()
    assert engine.said[0][0].error == "exit code 1"
    assert "out of memory" in engine.health.last_error, "a start that fails shows it"


def test_a_state_counts_from_the_last_move() -> None:
    engine = Reported()
    assert engine.health.since == 100.0
    engine.time = 110.0
    engine.health.answered()
    assert (engine.health.since, engine.health.last_answer) == (100.0, 110.0)
    engine.health.moved()
    assert engine.health.since == 110.0
