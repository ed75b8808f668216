"""How often a status is written: the first changes at once, and what flaps now and then."""

from dataclasses import replace
from itertools import pairwise

import pytest

from rljob_api.control import EngineState, Finding, Progress
from rljob_operator.plan import Plan
from support.operator.operator_world import Surroundings, running


def trains() -> Surroundings:
    around = Surroundings().to_running()
    around.is_hurried = True
    return around


def flapped(around: Surroundings, seconds: int, every_s: int = 1) -> list[Plan]:
    """An engine is slow to answer every other second; return the plans."""
    plans = []
    for second in range(0, seconds, every_s):
        around.now += every_s
        state = EngineState.SUSPECT if second // every_s % 2 else EngineState.HEALTHY
        around.runs(running(state, EngineState.HEALTHY))
        plans.append(around.step())
    return plans


def test_an_engine_that_flaps_writes_the_status_now_and_then():
    plans = flapped(Surroundings().to_running(), 60)
    assert sum(plan.status is not None for plan in plans) <= 20
    assert sum(len(plan.events) for plan in plans) <= 10


def test_the_first_change_and_the_last_one_are_written_soon():
    around = Surroundings().to_running()
    around.now += 60
    assert flapped(around, 2)[-1].status is not None
    flapped(around, 60)
    around.runs(running(EngineState.HEALTHY, EngineState.SUSPECT))
    todo = around.step()
    wait_s = todo.requeue_after_s if todo.status is None else 0.0
    assert wait_s is not None
    assert wait_s <= 5
    around.now += wait_s
    around.step()
    assert around.status["engines"]["items"][1]["state"] == "Suspect"


def test_no_pace_holds_up_the_end_of_an_attempt_or_an_order():
    around = Surroundings().to_running()
    flapped(around, 60)
    around.runs(running(EngineState.DEAD, EngineState.HEALTHY))
    todo = around.step()
    assert todo.orders.engines
    assert around.status["recovery"][-1]["action"] == "RestartEngine"
    around.ends(4)
    assert around.step().status is not None


def test_a_job_that_is_edited_all_the_time_is_written_every_second_at_most():
    around = trains()
    writes = 0
    for _ in range(100):
        around.now += 0.1
        around.edit()
        writes += around.step().status is not None
    assert writes <= 11


@pytest.mark.parametrize("comes_and_goes", [False, True])
def test_a_finding_with_a_new_number_is_mere_progress(comes_and_goes: bool):
    around = Surroundings().to_running()
    writes = 0
    for step in range(4, 64):
        around.now += 1
        finding = Finding(name="NoSignal", evidence=f"{0.9 + step / 1000:.1%}", advice="x")
        found = () if comes_and_goes and step % 2 else (finding,)
        progress = Progress(step=step, steps=1000, last_step_seconds={"train": 1.0})
        around.runs(running(step=step, progress=progress, findings=found))
        writes += around.step().status is not None
    assert writes <= (20 if comes_and_goes else 6)


def test_what_another_process_has_written_is_no_reason_to_wait():
    around = Surroundings().to_running()
    flapped(around, 30)
    around.pace = replace(around.pace, written_at=0.0, views_back_at=0.0)
    around.runs(running(EngineState.HEALTHY, EngineState.SUSPECT))
    assert around.step().status is not None


@pytest.mark.parametrize("every_s", [0.05, 0.3, 0.9])
def test_two_writes_of_what_orders_do_not_depend_on_are_a_second_apart(every_s: float):
    around, written = trains(), list[float]()
    for number in range(200):
        around.now += every_s
        around.runs(running(EngineState.SUSPECT if number % 2 else EngineState.HEALTHY, EngineState.HEALTHY))
        if number % 7 == 0:
            around.edit()
        if around.step().status is not None:
            written.append(around.now)
    apart = [later - earlier for earlier, later in pairwise(written)]
    assert len(apart) >= 5
    assert min(apart) >= 1.0 - 1e-6


def test_what_waits_for_its_second_is_looked_at_again_when_it_is_due():
    around = trains()
    around.now += 5
    around.edit()
    assert around.step().status is not None
    around.now += 0.25
    around.edit()
    todo = around.step()
    assert (todo.status, todo.requeue_after_s) == (None, pytest.approx(0.75))
    around.now += 0.75
    assert around.step().status is not None


def test_what_orders_depend_on_is_written_at_once():
    around = trains()
    around.now += 5
    around.edit()
    assert around.step().status is not None
    around.now += 0.1
    around.ends(4)
    assert around.step().status is not None
    assert around.status["attempts"][0]["exitCode"] == 4
