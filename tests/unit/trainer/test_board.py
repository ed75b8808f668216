"""The status in one place: revisions, phases, incidents and decisions."""

import threading

import pytest
from pydantic import ValidationError

from rljob_api.control import Decision, Incident, RunState, Status
from rljob_trainer.board import KEPT_DECISIONS, StatusBoard


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def incident(**facts) -> Incident:
    return Incident(time=1.0, engine="engine-0", error="it died", **{"generation": 0, **facts})


def decision(generation: int) -> Decision:
    return Decision(time=1.0, step=0, engine="engine-0", generation=generation, by="driver", reason="")


def test_every_change_makes_a_new_revision_and_wakes_the_watchers():
    board, woken = StatusBoard(Status()), []
    with board.watching(lambda: woken.append(board.status.revision)):
        board.update(state=RunState.RUNNING)
        board.begin("rollout")
    board.begin("train")
    assert woken == [1, 2]


def test_a_heartbeat_makes_no_revision():
    clock = Clock()
    board = StatusBoard(Status(), clock)
    board.beat()
    assert (board.status.revision, board.status.heartbeat) == (0, 100.0)


def test_the_longest_phase_that_has_ended_is_remembered():
    clock = Clock()
    board = StatusBoard(Status(), clock)
    board.begin("rollout")
    clock.now += 30
    board.begin("train")
    clock.now += 5
    board.begin("publish")
    assert (board.status.phase, board.status.longest_phase_seconds) == ("publish", 30.0)


def test_a_field_that_does_not_exist_is_refused():
    with pytest.raises(ValidationError, match="setp"):
        StatusBoard(Status()).update(setp=3)


def test_what_becomes_known_later_completes_an_incident():
    board = StatusBoard(Status())
    board.report(incident())
    board.report(incident(generation=1))
    board.report(incident(return_seconds=4.0))
    assert [(found.generation, found.return_seconds) for found in board.status.incidents] == [(1, None), (0, 4.0)]


def test_only_the_newest_decisions_are_kept():
    board = StatusBoard(Status())
    list(map(board.record, map(decision, range(KEPT_DECISIONS + 1))))
    assert [board.status.decisions[0].generation, len(board.status.decisions)] == [1, KEPT_DECISIONS]


def test_changes_from_several_threads_are_all_kept():
    board = StatusBoard(Status())
    threads = [threading.Thread(target=board.record, args=(decision(number),)) for number in range(20)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert {found.generation for found in board.status.decisions} == set(range(20))
    assert board.status.revision == 20
