"""The recovery policy: tables for what it decides, properties for what it never does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.control import DecidedBy, Decision, EngineState, EngineStatus, Progress, Status
from rljob_api.exits import Cause, Exit
from rljob_api.recovery import (
    Backoff,
    Done,
    EndedAttempt,
    Exhausted,
    GiveUp,
    History,
    Order,
    RestartDriver,
    RestartEngine,
    after_exit,
    decide,
    drain_seconds,
    failures_since_progress,
    history_of,
    signs_of_life,
    stall_deadline_s,
    stalled,
    wants_new_cluster,
)
from rljob_api.sections import Recovery
from rljob_api.status import MOST_ATTEMPTS

NOW = 10_000.0
RECOVERY = Recovery(engine_restarts=3, driver_restarts=2, start_timeout_seconds=300)
FRESH = History(step=5, decisions=())


def engine(name: str = "engine-0", state: EngineState = EngineState.DEAD, generation: int = 0, since: float = NOW):
    return EngineStatus(name=name, state=state, generation=generation, since=since, last_error="it died")


def decision(name: str = "engine-0", generation: int = 1, step: int = 5, time: float = NOW - 1) -> Decision:
    return Decision(time=time, step=step, engine=name, generation=generation, by=DecidedBy.SUPERVISOR, reason="it died")


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


def test_the_back_off_doubles_at_most_sixteen_times():
    assert Backoff(first_s=1.0, longest_s=1e9).delay_s(10_000) == 2.0**16


def test_a_completed_step_refills_the_budget_but_not_the_patience():
    dead, history = [engine(generation=3)], restarted(3, step=4)
    assert decide(dead, history, RECOVERY, NOW) == ()
    assert decide(dead, history, RECOVERY, NOW + 4) == (RestartEngine("engine-0", 4, "it died"),)


def test_old_restarts_do_not_lengthen_the_back_off():
    history = History(5, (decision(step=3, time=NOW - 600),))
    assert decide([engine(generation=1)], history, RECOVERY, NOW) != ()


def test_a_restart_within_the_window_lengthens_the_back_off():
    history = History(5, (decision(step=3, time=NOW - 599),))
    assert decide([engine(generation=1)], history, RECOVERY, NOW) == ()


def test_an_engine_that_died_without_a_word_is_restarted_for_no_known_error():
    silent = engine().model_copy(update={"last_error": None})
    assert decide([silent], FRESH, RECOVERY, NOW) == (RestartEngine("engine-0", 1, "no error known"),)


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


def test_a_restart_of_the_driver_names_the_end_of_every_engine():
    history = History(5, (*restarted(3).decisions, *(decision("engine-1", number) for number in (1, 2, 3))))
    *_, order = decide([engine(generation=3), engine("engine-1", generation=3)], history, RECOVERY, NOW)
    died = "{} died 4 times since step 5: it died"
    assert order.reason == f"no engine is left: {died.format('engine-0')}; {died.format('engine-1')}"


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
        by=st.sampled_from(DecidedBy),
        reason=st.text(max_size=3),
    ),
    max_size=12,
).map(tuple)
HISTORIES = st.builds(History, step=st.integers(0, 5), decisions=DECISIONS)


@given(ENGINES.flatmap(lambda engines: st.tuples(st.just(engines), st.permutations(engines))), HISTORIES)
def test_engines_get_the_same_orders_in_whatever_order_they_are_listed(listed, history):
    first, second = (decide(engines, history, RECOVERY, NOW) for engines in listed)
    assert {_comparable(order) for order in first} == {_comparable(order) for order in second}


def _comparable(order: Order) -> Order | type[Order]:
    """Return the order; of a restart of the driver only that it is one, because its reason lists the engines."""
    return RestartDriver if isinstance(order, RestartDriver) else order


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


def attempts(*ends: tuple[int, int | None]) -> list[EndedAttempt]:
    return [EndedAttempt(number, code, checkpoint) for number, (code, checkpoint) in enumerate(ends, start=1)]


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


def test_an_unknown_exit_code_is_reported():
    assert after_exit(attempts((99, None)), RECOVERY).reason == "ended with exit code 99"


def test_a_signal_without_a_name_is_reported_by_its_number():
    assert after_exit(attempts((-200, None)), RECOVERY).reason == "killed by signal 200"


INFRASTRUCTURE, APPLICATION = Cause.INFRASTRUCTURE, Cause.APPLICATION


def ended(*ends: tuple[Cause, int | None, int | None]) -> list[EndedAttempt]:
    return [
        EndedAttempt(number, Exit.PREEMPTED if cause is INFRASTRUCTURE else Exit.FAILED, checkpoint, step, cause)
        for number, (cause, checkpoint, step) in enumerate(ends, start=1)
    ]


@pytest.mark.parametrize(
    ("ends", "cause", "failures"),
    [
        ([(INFRASTRUCTURE, None, None)] * 3, INFRASTRUCTURE, 3),
        ([(INFRASTRUCTURE, None, 5), (INFRASTRUCTURE, None, 6)], INFRASTRUCTURE, 1),
        ([(INFRASTRUCTURE, None, 6), (INFRASTRUCTURE, None, 5), (INFRASTRUCTURE, None, 6)], INFRASTRUCTURE, 3),
        ([(INFRASTRUCTURE, 4, 6), (INFRASTRUCTURE, 5, 6)], INFRASTRUCTURE, 1),
        ([(INFRASTRUCTURE, 5, 6), (INFRASTRUCTURE, 4, 6)], INFRASTRUCTURE, 2),
        ([(APPLICATION, None, 5), (APPLICATION, None, 6)], APPLICATION, 2),
        ([(APPLICATION, 5, 5), (APPLICATION, 6, 6)], APPLICATION, 1),
        ([(APPLICATION, None, 1), (INFRASTRUCTURE, None, 1), (APPLICATION, None, 1)], APPLICATION, 2),
        ([(INFRASTRUCTURE, None, 1), (APPLICATION, None, 2), (INFRASTRUCTURE, None, 2)], INFRASTRUCTURE, 1),
    ],
)
def test_failures_are_counted_by_their_cause_since_the_last_progress(ends, cause, failures):
    assert failures_since_progress(ended(*ends), cause) == failures


@given(st.integers(0, 5))
def test_lost_pods_are_restarted_as_often_as_their_own_budget_says(budget):
    policy = Recovery(driver_restarts=0, infrastructure_restarts=budget)
    ends = [after_exit(ended(*[(INFRASTRUCTURE, None, 3)] * times), policy) for times in range(1, 9)]
    assert sum(isinstance(end, RestartDriver) for end in ends) == budget
    assert isinstance(ends[-1], GiveUp)


@given(st.lists(st.sampled_from([INFRASTRUCTURE, APPLICATION]), min_size=81, max_size=81))
def test_the_attempts_that_a_status_keeps_are_enough_to_give_up(causes):
    policy = Recovery(driver_restarts=40, infrastructure_restarts=40)
    kept = ended(*[(cause, None, None) for cause in causes])[-MOST_ATTEMPTS:]
    spent = [failures_since_progress(kept, cause) for cause in (APPLICATION, INFRASTRUCTURE)]
    assert spent[0] > policy.driver_restarts or spent[1] > policy.infrastructure_restarts


@given(st.integers(0, 5))
def test_the_driver_is_restarted_as_often_as_its_budget_says(budget):
    ends = [after_exit(attempts(*[(-9, None)] * times), Recovery(driver_restarts=budget)) for times in range(1, 9)]
    assert sum(isinstance(end, RestartDriver) for end in ends) == budget


def stepping(longest_phase_s: float, state: EngineState = EngineState.HEALTHY) -> Status:
    progress = Progress(last_step_seconds={"rollout": 1.0})
    return Status(longest_phase_seconds=longest_phase_s, progress=progress, engines=(engine(state=state),))


def in_a_step(phase: str, of_steps_s: float, longest_s: float, state: EngineState = EngineState.HEALTHY) -> Status:
    return stepping(longest_s, state).model_copy(update={"phase": phase, "longest_step_phase_seconds": of_steps_s})


@pytest.mark.parametrize(
    ("status", "deadline_s"),
    [
        (None, 300),
        (Status(), 300),
        (stepping(1.0), 60),
        (stepping(20.0), 200),
        (Status(longest_phase_seconds=90), 900),
        (Status(engines=(engine(state=EngineState.HEALTHY),)), 300),
        (stepping(1.0, EngineState.DEAD), 300),
        (stepping(1.0, EngineState.STARTING), 300),
        (in_a_step("rollout", of_steps_s=2.0, longest_s=3.0), 60),
        (in_a_step("rollout", of_steps_s=2.0, longest_s=20.0), 100),
        (in_a_step("train", of_steps_s=2.0, longest_s=70.0), 200),
        (in_a_step("train", of_steps_s=30.0, longest_s=70.0), 300),
        (in_a_step("rollout", of_steps_s=0.0, longest_s=70.0), 700),  # an older driver
        *((in_a_step(each, of_steps_s=2.0, longest_s=70.0), 700) for each in ("start", "checkpoint", "publish")),
        (in_a_step("rollout", of_steps_s=2.0, longest_s=70.0, state=EngineState.DEAD), 700),
    ],
)
def test_a_driver_is_stalled_by_the_measure_of_its_own_phases(status, deadline_s):
    assert stall_deadline_s(status, RECOVERY) == deadline_s


@pytest.mark.parametrize(("timeout_s", "failures", "deadline_s"), [(10, 3, 100), (60, 3, 314.5), (10, 20, 370)])
def test_a_step_waits_until_its_driver_can_have_noticed_an_engine_that_hangs(timeout_s, failures, deadline_s):
    recovery = RECOVERY.model_copy(update={"health_timeout_seconds": timeout_s, "health_failures": failures})
    status = in_a_step("rollout", of_steps_s=2.0, longest_s=20.0).model_copy(update={"longest_phase_seconds": 20.0})
    assert stall_deadline_s(status, recovery) == min(200, deadline_s)
    slow = status.model_copy(update={"longest_phase_seconds": 100.0})
    assert stall_deadline_s(slow, recovery) == deadline_s + 160


def test_a_driver_that_never_answered_has_the_time_of_a_start_however_short():
    assert stall_deadline_s(None, Recovery(start_timeout_seconds=5), shortest_s=1.0) == 5


@pytest.mark.parametrize(
    ("last_step_s", "save_s", "drain_s"),
    [
        ({}, None, None),
        ({}, 7.0, None),
        ({"rollout": 20.0, "train": 30.0}, None, 50.0),
        ({"rollout": 20.0, "train": 30.0}, 7.0, 57.0),
        ({"rollout": 20.0, "train": 30.0, "checkpoint": 5.0}, 7.0, 57.0),
    ],
)
def test_a_drain_lasts_as_long_as_a_step_and_one_save(last_step_s, save_s, drain_s):
    status = Status(progress=Progress(last_step_seconds=last_step_s), save_seconds=save_s)
    assert drain_seconds(status) == drain_s


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


@pytest.mark.parametrize(
    ("ends", "new"),
    [
        ([(-9, None)], False),
        ([(-9, None), (-9, None)], True),
        ([(-9, None), (-9, 10)], False),
        ([(-9, 10), (-9, 10)], True),
        ([(-9, 10), (-9, 10), (-9, 20)], False),
    ],
)
def test_a_second_attempt_without_a_new_checkpoint_asks_for_a_new_cluster(ends, new):
    assert wants_new_cluster(attempts(*ends)) == new


@given(st.integers(0, 100), DECISIONS)
def test_the_policy_knows_the_steps_and_the_decisions_of_a_status(step, decisions):
    status = Status(progress=Progress(step=step), decisions=decisions)
    assert history_of(status) == History(step, decisions)


ALIVE_FOR_LONG = Status(
    heartbeat=9000.0,
    phase="rollout",
    phase_since=9000.0 - 301.0,
    longest_phase_seconds=30.0,
    progress=Progress(step=3, last_step_seconds={"rollout": 20.0, "train": 30.0, "evaluate": 9.0}),
    engines=(engine(state=EngineState.HEALTHY),),
)


@pytest.mark.parametrize(
    ("changes", "is_stalled"),
    [
        ({}, True),
        ({"phase_since": 9000.0 - 300.0}, False),
        ({"longest_phase_seconds": 30.1}, False),
        ({"phase": "evaluate"}, False),
        ({"phase": "start"}, False),
        ({"progress": Progress(step=0)}, False),
        ({"waited_seconds": 2.0}, False),
        ({"waited_seconds": 2000.0, "phase_since": 9000.0 - 302.0 - 1800.0}, True),
    ],
)
def test_a_phase_that_is_alive_and_never_ends_is_stalled(changes, is_stalled):
    found = stalled(ALIVE_FOR_LONG.model_copy(update=changes), 0.0, RECOVERY)
    assert (found is not None) is is_stalled


def test_the_reason_of_a_stall_names_the_phase_and_where_the_ranks_stand():
    assert stalled(None, 301.0, RECOVERY) == "no progress for 301 s in phase start"
    assert stalled(None, 300.0, RECOVERY) is None
    status = ALIVE_FOR_LONG.model_copy(update={"stacks": "rank 1: does not answer"})
    assert stalled(status, 300.5, RECOVERY) == "no progress for 300 s in phase rollout; rank 1: does not answer"
    assert stalled(status, 0.0, RECOVERY) == (
        "phase rollout is alive and has not ended for 301 s; the longest phase before took 30 s"
    )
