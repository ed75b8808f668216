"""The status in one place: revisions, phases, incidents and decisions."""

import threading

import pytest
from pydantic import ValidationError

from rljob_api.control import DecidedBy, Decision, Incident, RunState, Status
from rljob_trainer.control.status_store import KEPT_DECISIONS, StatusStore


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def incident(**facts) -> Incident:
    return Incident(time=1.0, engine="engine-0", error="it died", **{"generation": 0, **facts})


def decision(generation: int) -> Decision:
    return Decision(time=1.0, step=0, engine="engine-0", generation=generation, by=DecidedBy.DRIVER, reason="")


def test_every_change_makes_a_new_revision_and_wakes_the_watchers():
    status_store, woken = StatusStore(Status()), []
    with status_store.watching(lambda: woken.append(status_store.status.revision)):
        status_store.update(state=RunState.RUNNING)
        status_store.begin("rollout")
    status_store.begin("train")
    assert woken == [1, 2]


def test_a_heartbeat_makes_no_revision():
    clock = Clock()
    status_store = StatusStore(Status(), clock)
    status_store.beat()
    assert (status_store.status.revision, status_store.status.heartbeat) == (0, 100.0)


def test_the_longest_phase_of_steps_is_remembered_apart_from_start_and_saves():
    clock = Clock()
    status_store = StatusStore(Status(), clock)
    for phase, seconds in (("start", 60.0), ("load", 30.0), ("rollout", 4.0), ("train", 3.0), ("checkpoint", 9.0)):
        status_store.begin(phase)
        clock.now += seconds
    status_store.begin("rollout")
    status = status_store.status
    assert (status.longest_phase_seconds, status.longest_step_phase_seconds) == (60.0, 4.0)


def test_the_longest_phase_that_has_ended_is_remembered():
    clock = Clock()
    status_store = StatusStore(Status(), clock)
    status_store.begin("rollout")
    clock.now += 30
    status_store.begin("train")
    clock.now += 5
    status_store.begin("publish")
    assert (status_store.status.phase, status_store.status.longest_phase_seconds) == ("publish", 30.0)


def test_a_field_that_does_not_exist_is_refused():
    with pytest.raises(ValidationError, match="setp"):
        StatusStore(Status()).update(setp=3)


def test_what_becomes_known_later_completes_an_incident():
    status_store = StatusStore(Status())
    status_store.report(incident())
    status_store.report(incident(generation=1))
    status_store.report(incident(return_seconds=4.0))
    assert [(found.generation, found.return_seconds) for found in status_store.status.incidents] == [
        (1, None),
        (0, 4.0),
    ]


def test_only_the_newest_decisions_are_kept():
    status_store = StatusStore(Status())
    list(map(status_store.record, map(decision, range(KEPT_DECISIONS + 1))))
    assert [status_store.status.decisions[0].generation, len(status_store.status.decisions)] == [1, KEPT_DECISIONS]


def test_changes_from_several_threads_are_all_kept():
    status_store = StatusStore(Status())
    threads = [threading.Thread(target=status_store.record, args=(decision(number),)) for number in range(20)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {found.generation for found in status_store.status.decisions} == set(range(20))
    assert status_store.status.revision == 20
