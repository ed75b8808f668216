"""The recovery policy: tables for what it decides, properties for what it never does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.control import Decision, EngineState, EngineStatus, Progress, Status
from rljob_api.exits import Exit
from rljob_api.recovery import (
    Attempt,
    Backoff,
    Done,
    Exhausted,
    GiveUp,
    History,
    Order,
    RestartDriver,
    RestartEngine,
    after_exit,
    decide,
    signs_of_life,
    stall_deadline_s,
)
from rljob_api.sections import Recovery

NOW = 10_000.0
RECOVERY = Recovery(engine_restarts=3, driver_restarts=2, start_timeout_seconds=300)
FRESH = History(step=5, decisions=())


def engine(name: str = "engine-0", state: EngineState = EngineState.DEAD, generation: int = 0, since: float = NOW):
    return EngineStatus(name=name, state=state, generation=generation, since=since, last_error="it died")


def decision(name: str = "engine-0", generation: int = 1, step: int = 5, time: float = NOW - 1) -> Decision:
    return Decision(time=time, step=step, engine=name, generation=generation, by="supervisor", reason="it died")


def restarted(times: int, step: int = 5) -> History:
    return History(5, tuple(decision(generation=generation, step=step) for generation in range(1, times + 1)))


def carried_out(orders: tuple[Order, ...], history: History) -> History:
    restarts = [order for order in orders if isinstance(order, RestartEngine)]
    accepted = [decision(order.engine, order.generation, history.step, NOW) for order in restarts]
    return History(history.step, (*history.decisions, *accepted))


def test_a_dead_engine_is_restarted_at_once_with_the_next_generation():
    assert decide([engine(generation=2)], FRESH, RECOVERY, NOW) == (RestartEngine("engine-0", 3, "it died"),)


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.DEAD])
def test_an_engine_that_is_not_dead_is_left_alone(state):
    assert decide([engine(state=state)], FRESH, RECOVERY, NOW) == ()


@pytest.mark.parametrize(("restarts", "wait_s"), [(1, 1.0), (2, 2.0)])
def test_each_further_restart_waits_twice_as_long(restarts, wait_s):
    dead = [engine(generation=restarts)]
    assert decide(dead, restarted(restarts), RECOVERY, NOW + wait_s - 0.1) == ()
    assert decide(dead, restarted(restarts), RECOVERY, NOW + wait_s) != ()


def test_the_back_off_has_a_cap():
    assert Backoff(first_s=1.0, longest_s=60.0).delay_s(10_000) == 60.0


def test_a_completed_step_refills_the_budget_but_not_the_patience():
    dead, history = [engine(generation=3)], restarted(3, step=4)
    assert decide(dead, history, RECOVERY, NOW) == ()
    assert decide(dead, history, RECOVERY, NOW + 4) == (RestartEngine("engine-0", 4, "it died"),)


def test_old_restarts_do_not_lengthen_the_back_off():
    history = History(5, (decision(step=3, time=NOW - 601),))
    assert decide([engine(generation=1)], history, RECOVERY, NOW) != ()


def test_an_exhausted_engine_is_left_while_another_works():
    engines = [engine(generation=3), engine("engine-1", EngineState.HEALTHY)]
    (order,) = decide(engines, restarted(3), RECOVERY, NOW + 100)
    assert order == Exhausted("engine-0", "engine-0 died 4 times since step 5: it died")


@pytest.mark.parametrize("hope", [EngineState.STARTING, EngineState.STALE, EngineState.SUSPECT])
def test_the_driver_is_not_restarted_while_an_engine_may_still_come(hope):
    orders = decide([engine(generation=3), engine("engine-1", hope)], restarted(3), RECOVERY, NOW + 100)
    assert not any(isinstance(order, RestartDriver) for order in orders)


def test_the_driver_is_not_restarted_while_a_back_off_runs():
    engines = [engine(generation=3), engine("engine-1", generation=1)]
    history = History(5, (*restarted(3).decisions, decision("engine-1")))
    assert not any(isinstance(order, RestartDriver) for order in decide(engines, history, RECOVERY, NOW))


def test_the_driver_is_restarted_when_the_last_engine_is_exhausted():
    *_, order = decide([engine(generation=3)], restarted(3), RECOVERY, NOW)
    assert order == RestartDriver("no engine is left: engine-0 died 4 times since step 5: it died", delay_s=0.0)


def test_without_engines_there_is_nothing_to_do():
    assert decide([], FRESH, RECOVERY, NOW) == ()


ENGINES = st.lists(
    st.builds(
        EngineStatus,
        name=st.sampled_from(["engine-0", "engine-1", "engine-2"]),
        state=st.sampled_from(EngineState),
        since=st.floats(NOW - 1000, NOW),
        generation=st.integers(0, 5),
    ),
    unique_by=lambda status: status.name,
)
DECISIONS = st.lists(
    st.builds(
        Decision,
        time=st.floats(NOW - 2000, NOW),
        step=st.integers(0, 5),
        engine=st.sampled_from(["engine-0", "engine-1", "engine-2"]),
        generation=st.integers(0, 6),
        by=st.sampled_from(["supervisor", "driver"]),
        reason=st.text(max_size=3),
    ),
    max_size=12,
).map(tuple)
HISTORIES = st.builds(History, step=st.integers(0, 5), decisions=DECISIONS)


@given(ENGINES, HISTORIES)
def test_deciding_twice_on_the_same_facts_gives_the_same_orders(engines, history):
    assert decide(engines, history, RECOVERY, NOW) == decide(engines, history, RECOVERY, NOW)


@given(ENGINES, HISTORIES)
def test_an_accepted_order_is_not_given_again(engines, history):
    after = carried_out(decide(engines, history, RECOVERY, NOW), history)
    again = decide(engines, after, RECOVERY, NOW + 1e6)
    restarted_before = {d.engine for d in after.decisions[len(history.decisions) :]}
    assert restarted_before.isdisjoint(order.engine for order in again if not isinstance(order, RestartDriver))


@given(ENGINES, HISTORIES)
def test_only_dead_engines_get_orders_and_only_for_the_next_generation(engines, history):
    dead = {(e.name, e.generation + 1) for e in engines if e.state is EngineState.DEAD}
    orders = decide(engines, history, RECOVERY, NOW)
    assert {(o.engine, o.generation) for o in orders if isinstance(o, RestartEngine)} <= dead
    assert {o.engine for o in orders if isinstance(o, Exhausted)} <= {name for name, _ in dead}


@given(ENGINES, HISTORIES, st.floats(0, 1000))
def test_an_order_that_is_due_stays_due(engines, history, later_s):
    assert set(decide(engines, history, RECOVERY, NOW)) <= set(decide(engines, history, RECOVERY, NOW + later_s))


@given(ENGINES, HISTORIES)
def test_no_dead_engine_is_forgotten(engines, history):
    ordered = {
        d.engine for d in history.decisions for e in engines if d.engine == e.name and d.generation > e.generation
    }
    dead = {e.name for e in engines if e.state is EngineState.DEAD} - ordered
    orders = decide(engines, history, RECOVERY, NOW + Backoff().longest_s)
    assert {order.engine for order in orders if not isinstance(order, RestartDriver)} == dead


@given(ENGINES, HISTORIES)
def test_the_driver_is_restarted_only_when_every_engine_is_dead(engines, history):
    orders = decide(engines, history, RECOVERY, NOW)
    alive = [e for e in engines if e.state is not EngineState.DEAD]
    assert not (alive and any(isinstance(order, RestartDriver) for order in orders))


def restarts_of_an_engine_that_always_dies(recovery: Recovery) -> int:
    history = FRESH
    for generation in range(10):
        history = carried_out(decide([engine(generation=generation)], history, recovery, NOW + 1e3), history)
    return len(history.decisions)


@given(st.integers(0, 6))
def test_one_engine_is_restarted_as_often_as_its_budget_says(budget):
    assert restarts_of_an_engine_that_always_dies(Recovery(engine_restarts=budget)) == budget


def attempts(*ends: tuple[int, int | None]) -> list[Attempt]:
    return [Attempt(number, code, checkpoint) for number, (code, checkpoint) in enumerate(ends, start=1)]


@pytest.mark.parametrize("code", [Exit.OK, Exit.PREEMPTED])
def test_a_run_that_ended_as_it_should_is_done(code):
    assert after_exit(attempts((code, None)), RECOVERY) == Done(code.meaning)


@pytest.mark.parametrize("code", [Exit.USAGE, Exit.BAD_MANIFEST, Exit.BAD_INPUT, Exit.BUDGET_EXHAUSTED])
def test_what_another_start_cannot_change_is_never_retried(code):
    assert after_exit(attempts((code, None)), RECOVERY) == GiveUp(code.meaning, code)


@pytest.mark.parametrize("code", [Exit.FAILED, Exit.OUT_OF_MEMORY, Exit.LOST_PEER, Exit.STALLED, -9, 77])
def test_trouble_outside_the_run_is_retried_at_once_the_first_time(code):
    ending = after_exit(attempts((code, None)), RECOVERY)
    assert isinstance(ending, RestartDriver)
    assert ending.delay_s == 0.0


def test_further_attempts_wait_longer_and_longer():
    recovery = Recovery(driver_restarts=9)
    ends = [after_exit(attempts(*[(-9, 4)] * times), recovery) for times in (1, 2, 3, 4)]
    assert [end.delay_s for end in ends if isinstance(end, RestartDriver)] == [0.0, 1.0, 2.0, 4.0]


def test_the_run_is_given_up_when_no_restart_is_left():
    ending = after_exit(attempts((-9, None), (-9, None), (-9, None)), RECOVERY)
    assert ending == GiveUp("killed by SIGKILL; attempts without a new checkpoint: 3", Exit.BUDGET_EXHAUSTED)


def test_a_new_checkpoint_refills_the_restarts_of_the_driver():
    ending = after_exit(attempts((-9, None), (-9, None), (-9, 10)), RECOVERY)
    assert ending == RestartDriver("killed by SIGKILL", delay_s=0.0)


def test_an_unknown_exit_code_is_told():
    assert after_exit(attempts((99, None)), RECOVERY).reason == "ended with exit code 99"


@given(st.integers(0, 5))
def test_the_driver_is_restarted_as_often_as_its_budget_says(budget):
    ends = [after_exit(attempts(*[(-9, None)] * times), Recovery(driver_restarts=budget)) for times in range(1, 9)]
    assert sum(isinstance(end, RestartDriver) for end in ends) == budget


def stepping(longest_phase_s: float, state: EngineState = EngineState.HEALTHY) -> Status:
    progress = Progress(last_step_seconds={"rollout": 1.0})
    return Status(longest_phase_seconds=longest_phase_s, progress=progress, engines=(engine(state=state),))


@pytest.mark.parametrize(
    ("status", "deadline_s"),
    [
        (None, 300),
        (Status(), 300),
        (stepping(1.0), 60),
        (stepping(20.0), 200),
        (Status(longest_phase_seconds=90), 900),
        (stepping(1.0, EngineState.DEAD), 300),
        (stepping(1.0, EngineState.STARTING), 300),
    ],
)
def test_a_driver_is_stalled_by_the_measure_of_its_own_phases(status, deadline_s):
    assert stall_deadline_s(status, RECOVERY) == deadline_s


@pytest.mark.parametrize(
    ("change", "is_sign"),
    [
        ({"heartbeat": 2.0}, True),
        ({"engines": (engine(state=EngineState.STALE),)}, True),
        ({"engines": (engine(generation=1),)}, True),
        ({"revision": 7}, False),
        ({"progress": Progress(eta_seconds=3.0)}, False),
    ],
)
def test_heartbeats_and_engines_that_come_and_go_are_signs_of_life(change, is_sign):
    before = Status(heartbeat=1.0, engines=(engine(),))
    assert (signs_of_life(before.model_copy(update=change)) != signs_of_life(before)) == is_sign
