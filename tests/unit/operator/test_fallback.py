"""A job that cannot be planned is followed, drained, stopped and freed all the same, and says so."""

import asyncio
from typing import Any

import pytest

from rljob_api.control import EngineState, TokenRates
from rljob_api.exits import Exit
from rljob_operator.attempts.escalation import SHORTEST_DRAIN_S, STOP_S
from rljob_operator.fallback import ENDED_S, Ending, ending_of, fallback_plan
from rljob_operator.plan import NO_ORDERS, Plan
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import DriverState
from support.operator.operator_world import NOW, Surroundings, running
from unit.operator.execution.test_execution import KEY, House

PREEMPTED = QueueDecision(Standing.PREEMPTED, "another needs it", preempted_for="ml/urgent")


class Unplannable:
    """A job that trains, until no plan can be made for it."""

    def __init__(self) -> None:
        self.around = Surroundings().to_running()
        self.ending: Ending | None = None
        self.queue_decision: QueueDecision | None = None

    def plan(self, after_s: float = 0.0) -> Plan:
        around = self.around
        around.now += after_s
        self.ending = ending_of(around.raw, around.observed.driver, self.queue_decision, self.ending, around.now)
        return fallback_plan(around.raw, around.observed, self.ending, "RecursionError", around.now)


@pytest.fixture
def job() -> Unplannable:
    return Unplannable()


def test_it_is_followed_and_its_engines_are_restarted(job: Unplannable):
    job.around.runs(running(EngineState.HEALTHY, EngineState.DEAD))
    todo = job.plan()
    assert todo.follow is not None
    assert todo.follow.submission_id == "sums-7f3a1-attempt-1"
    assert [order.engine for order in todo.orders.engines] == ["engine-1"]


def test_its_status_and_an_event_say_why(job: Unplannable):
    todo = job.plan()
    assert todo.status is not None
    conditions = {each.type: each for each in todo.status.conditions}
    assert conditions["Ready"].message == "the operator cannot plan this job: RecursionError"
    assert conditions["Stalled"].status == "True"
    assert [event.reason for event in todo.events] == ["OperatorError"]
    assert todo.status.attempts


@pytest.mark.parametrize("why", ["suspended", "preempted"])
def test_one_that_has_to_go_saves_first(job: Unplannable, why: str):
    if why == "suspended":
        job.around.raw["spec"]["suspend"] = True
    else:
        job.queue_decision = PREEMPTED
    assert job.plan().orders.drain
    assert not job.plan(SHORTEST_DRAIN_S - 1).orders.stop
    assert job.plan(1).orders.stop
    assert job.plan(STOP_S - 1).delete == ()
    assert [target.kind for target in job.plan(1).delete] == ["RayCluster"]


def test_the_active_deadline_stops_it(job: Unplannable):
    job.around.raw["spec"]["scheduling"] = {"activeDeadlineSeconds": 50}
    assert job.plan(49).orders == NO_ORDERS
    assert job.plan(1).orders.stop
    assert [target.kind for target in job.plan(STOP_S).delete] == ["RayCluster"]


def test_a_driver_that_has_ended_frees_its_pods(job: Unplannable):
    job.around.ends(Exit.FAILED)
    assert job.plan().delete == ()
    assert [target.kind for target in job.plan(ENDED_S).delete] == ["RayCluster"]


def test_another_reason_to_end_gives_no_more_time(job: Unplannable):
    job.queue_decision = PREEMPTED
    job.plan()
    job.around.raw["spec"]["suspend"] = True
    assert job.plan(SHORTEST_DRAIN_S).orders.stop


@pytest.mark.parametrize("standing", [Standing.RESERVED, Standing.UNDECIDED])
def test_one_that_may_hold_room_trains_on(job: Unplannable, standing: Standing):
    job.queue_decision = QueueDecision(standing)
    assert job.plan().orders == NO_ORDERS


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": None},
        {"spec": []},
        {"status": {"startTime": 5}},
        {"status": {"attempt": "x"}},
        {"status": {"phase": 1}},
    ],
)
def test_it_asks_nothing_of_what_may_be_broken(job: Unplannable, broken: dict[str, Any]):
    job.around.raw = {**job.around.raw, **broken}
    assert job.plan().follow is not None


def test_a_driver_that_is_not_reached_is_freed_in_time(job: Unplannable):
    job.queue_decision = PREEMPTED
    job.around.driver(state=DriverState.UNKNOWN)
    job.plan()
    assert [target.kind for target in job.plan(SHORTEST_DRAIN_S + STOP_S).delete] == ["RayCluster"]


def test_the_reconciler_falls_back_and_raises(monkeypatch):
    house = House().train()

    def broken(*_: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("rljob_operator.reconcile.plan", broken)
    house.edit(suspend=True)
    for after_s in (0, SHORTEST_DRAIN_S, STOP_S):
        house.now += after_s
        house.sees(DriverState.RUNNING, status=running())
        with pytest.raises(RecursionError):
            asyncio.run(house.reconciler.reconcile(KEY))
    assert [orders.drain for orders in house.drivers.orders] == [True, False, False]
    assert [orders.stop for orders in house.drivers.orders] == [False, True, True]
    assert house.deleted == ["RayCluster"]
    ready = next(each for each in house.stored["conditions"] if each["type"] == "Ready")
    assert "RecursionError" in ready["message"]


def test_what_json_or_the_api_server_cannot_hold_is_not_in_a_status():
    around = Surroundings().to_running()
    twins = tuple(each.model_copy(update={"name": "engine-0"}) for each in running().engines)
    rates = TokenRates.model_construct(rollout=float("nan"), train=2.0)
    progress = running().progress.model_copy(update={"tokens_per_second": rates})
    around.runs(running(engines=twins, progress=progress))
    around.now += 60
    around.step()
    assert around.status["progress"]["tokensPerSecond"] == {"train": 2.0}
    assert [each["name"] for each in around.status["engines"]["items"]] == ["engine-0"]


@pytest.mark.parametrize("lie", [{"weight_version": -1}, {"step": 3_000_000_000}, {"eta_seconds": float("inf")}])
def test_a_lie_of_the_driver_costs_it_its_report_and_nothing_else(lie: dict[str, Any]):
    around = Surroundings().to_running()
    known = running()
    around.runs(known.model_copy(update={"progress": known.progress.model_copy(update=lie)}))
    around.edit(suspend=True)
    around.now = NOW + 60
    todo = around.plan()
    assert todo.left_out is not None
    assert todo.orders.drain
    assert around.condition("Training")["status"] == "True"
