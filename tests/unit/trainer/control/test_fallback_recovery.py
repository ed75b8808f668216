"""The driver looks after its engines itself, but only while nobody else does."""

import pytest

from rljob_api.control import DecidedBy, Decision, EngineState, EngineStatus, Status
from rljob_api.sections import Recovery
from rljob_trainer.control.fallback_recovery import FallbackRecovery
from rljob_trainer.control.orders import OrderBook
from rljob_trainer.control.server import Attendance
from rljob_trainer.control.status_store import StatusStore

NOW = 1000.0
DEAD = EngineStatus(name="engine-0", state=EngineState.DEAD, since=NOW, last_error="it died")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self, *decisions: Decision) -> None:
        self.clock = Clock()
        self.attendance = Attendance(self.clock)
        self.status_store = StatusStore(Status(engines=(DEAD,), decisions=decisions))
        self.restarts: list[tuple[str, int]] = []
        self.left: list[str] = []
        desired = OrderBook(
            self.status_store, lambda engine, generation, reason: self.restarts.append((engine, generation)), print
        )
        recovery = Recovery(grace_seconds=10, engine_restarts=1)
        self.care = FallbackRecovery(self.status_store, desired, self.attendance, recovery, self.left.append)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_done_within_the_grace_period(world):
    world.clock.now = 9.9
    world.care.look(NOW)
    assert world.restarts == []


def test_a_dead_engine_is_restarted_once_after_the_grace_period(world):
    world.clock.now = 10.0
    world.care.look(NOW)
    world.care.look(NOW + 60)
    assert world.restarts == [("engine-0", 1)]
    assert world.status_store.status.decisions[0].by is DecidedBy.DRIVER


def test_nothing_is_done_while_somebody_waits_for_the_status(world):
    with world.attendance.asking():
        world.clock.now = 100.0
        world.care.look(NOW)
    assert world.restarts == []


def test_a_poll_begins_the_grace_period_again(world):
    world.clock.now = 9.0
    with world.attendance.asking():
        pass
    world.clock.now = 18.0
    world.care.look(NOW)
    assert world.restarts == []


def test_a_driver_without_engines_leaves():
    spent = Decision(time=NOW, step=0, engine="engine-0", generation=0, by=DecidedBy.DRIVER, reason="")
    world = World(spent)
    world.clock.now = 10.0
    world.care.look(NOW)
    assert world.left == ["no engine is left: engine-0 died 2 times since step 0: it died"]
