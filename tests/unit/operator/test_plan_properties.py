"""Whatever happens to a job, in whatever order: the plan settles at once, and there is never a second driver."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.control import EngineState
from rljob_api.exits import Exit
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import ALIVE, SILENT_S, DriverState
from support.operator.operator_world import NOW, Surroundings, raw_job, running

EXIT_CODES = st.sampled_from([*Exit, -9, 77])
ENGINE_NUMBERS = st.sampled_from([2, 4, 6, 3])
"""3 fills pods of other sizes: the API server refuses it, but another change may have come before it had seen all"""
ENGINE_STATES = st.lists(st.sampled_from(EngineState), min_size=2, max_size=2)

DECISIONS = [
    None,
    QueueDecision(Standing.RESERVED, "it holds room", engines=2),
    QueueDecision(Standing.QUEUED, "needs more", position=1, first_since=NOW),
    QueueDecision(Standing.QUEUED, "needs less", position=2),
    QueueDecision(Standing.PREEMPTED, "another needs it", preempted_for="ml/urgent"),
    QueueDecision(Standing.NEVER, "needs more than there is"),
]
HAPPENINGS = st.one_of(
    st.tuples(st.just("pods"), st.none() | st.integers(0, 5)),
    st.tuples(st.just("deleted"), st.none()),
    st.tuples(st.just("answers"), st.none()),
    st.tuples(st.just("runs"), st.tuples(ENGINE_STATES, st.integers(0, 9), st.integers(0, 9))),
    st.tuples(st.just("ends"), EXIT_CODES),
    st.tuples(st.just("stopped"), st.none()),
    st.tuples(st.just("forgotten"), st.none()),
    st.tuples(st.just("unreachable"), st.none()),
    st.tuples(st.just("cluster lost"), st.none()),
    st.tuples(st.just("operator restarts"), st.none()),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("scale"), ENGINE_NUMBERS),
    st.tuples(st.just("engines follow"), st.none()),
    st.tuples(st.just("decision"), st.sampled_from(DECISIONS)),
    st.tuples(st.just("deadline"), st.integers(1, 5000)),
    st.tuples(st.just("ttl"), st.integers(0, 100)),
    st.tuples(st.just("time"), st.integers(1, 2000)),
)


def happen(around: Surroundings, what: str, how: object) -> None:
    match what, how:
        case "pods", ready:
            around.pods_ready(ready)
        case "deleted", _:
            around.deletions_done()
        case "answers", _:
            around.ray_answers()
        case "runs", (states, step, checkpoint) if around.observed.driver and around.observed.driver.state in ALIVE:
            known = around.observed.driver.status
            engines = {"engines": known.engines, "scale": known.scale} if known else {}
            around.runs(running(*states, step=step, checkpoint=checkpoint or None, **engines))
        case "scale", engines:
            around.scale(engines)
        case "engines follow", _:
            around.driver_scales()
        case "ends", code:
            around.ends(code)
        case "stopped", _ if around.observed.driver and around.observed.driver.is_stopping:
            around.driver(state=DriverState.STOPPED)
        case "forgotten", _:
            around.driver(state=DriverState.ABSENT, status=None)
        case "unreachable", _:
            around.driver(state=DriverState.UNKNOWN)
        case "cluster lost", _:
            kept = tuple(c for c in around.observed.children if c["kind"] != "RayCluster")
            around.observed = replace(around.observed, children=kept, pods=())
        case "operator restarts", _:
            around.observed = replace(around.observed, driver=None)
            around.pace = replace(around.pace, progress_due_at=0.0)
        case "suspend", wanted:
            around.edit(suspend=wanted)
        case "decision", found:
            around.queue_decision = found
        case "deadline", limit_s:
            around.edit(scheduling={"activeDeadlineSeconds": limit_s})
        case "ttl", ttl_s:
            around.edit(scheduling={"ttlSecondsAfterFinished": ttl_s})
        case "time", passed_s:
            around.now += passed_s


HISTORIES = st.lists(HAPPENINGS, max_size=40)
# Chance alone seldom gets a job to train.
WARM_UP = st.sampled_from(
    [
        (),
        (("pods", None), ("answers", None)),
        (("pods", None), ("answers", None), ("runs", ([EngineState.HEALTHY] * 2, 3, 2))),
    ]
)


def lived(warm_up: tuple, history: list) -> Surroundings:
    around = Surroundings(raw_job(recovery={"driverRestarts": 2}))
    around.step()
    for what, how in (*warm_up, *history):
        happen(around, what, how)
        around.step()
    return around


@given(WARM_UP, HISTORIES)
@settings(max_examples=100)
def test_planning_again_on_the_world_that_a_plan_produces_is_empty(warm_up, history):
    around = lived(warm_up, history)
    assert around.plan().is_empty, around.plan()


@given(WARM_UP, HISTORIES)
@settings(max_examples=100)
def test_an_attempt_is_submitted_once_unless_ray_has_forgotten_it_before_it_ran(warm_up, history):
    calm = [(what, how) for what, how in history if what not in ("forgotten",)]
    around = lived(warm_up, calm)
    assert len(around.submitted) == len(set(around.submitted))


@given(WARM_UP, HISTORIES)
@settings(max_examples=100)
def test_attempts_are_numbered_without_gaps_and_only_the_newest_is_open(warm_up, history):
    attempts = lived(warm_up, history).status.get("attempts", [])
    assert [attempt["number"] for attempt in attempts] == list(range(1, len(attempts) + 1))
    assert all("ended" in attempt for attempt in attempts[:-1])


@given(WARM_UP, HISTORIES)
@settings(max_examples=100)
def test_there_is_never_a_second_raycluster_while_a_first_one_is_there(warm_up, history):
    around = lived(warm_up, history)
    assert len(around.observed.rayclusters()) <= 1


SCALES = st.lists(
    st.sampled_from([("scale", 2), ("scale", 4), ("scale", 6), ("pods", None), ("pods", 3), ("engines follow", None)])
    | st.sampled_from([("unreachable", None), ("answers", None), ("operator restarts", None)]),
    max_size=40,
)


@given(SCALES)
@settings(max_examples=100)
def test_no_pod_is_taken_from_under_an_engine(history):
    trained = (("pods", None), ("answers", None), ("runs", ([EngineState.HEALTHY] * 2, 3, 2)))
    assert lived(trained, history).torn == []


@given(WARM_UP, HISTORIES, HISTORIES)
@settings(max_examples=100)
def test_a_job_that_has_ended_stays_ended(warm_up, history, after):
    around = lived(warm_up, [*history, ("suspend", False), ("pods", None), ("answers", None), ("deleted", None)])
    before = around.status.get("completionTime")
    submitted = len(around.submitted)
    for what, how in after:
        happen(around, what, how)
        around.step()
    assert before is None or (around.status["completionTime"], len(around.submitted)) == (before, submitted)


@given(WARM_UP, HISTORIES)
@settings(max_examples=100)
def test_a_status_is_about_the_present_generation_once_an_operator_has_had_time_to_look(warm_up, history):
    around = lived(warm_up, history)
    around.now += SILENT_S
    around.step()
    assert around.status["observedGeneration"] == around.raw["metadata"]["generation"]


@given(WARM_UP, HISTORIES)
@settings(max_examples=100)
def test_whatever_happens_all_pods_of_a_job_that_has_ended_are_freed(warm_up, history):
    around = lived(warm_up, history)
    around.ends(Exit.DIVERGED)
    around.step()
    ended = "completionTime" in around.status
    assert not ended or all("deletionTimestamp" in cluster["metadata"] for cluster in around.observed.rayclusters())


@given(WARM_UP, HISTORIES, st.integers(0, 3000))
@settings(max_examples=100)
def test_a_running_job_is_looked_at_again_within_30_seconds(warm_up, history, later_s):
    around = lived(warm_up, history)
    around.now += later_s
    todo = around.plan()
    assert todo.follow is None or (todo.requeue_after_s is not None and 0 < todo.requeue_after_s <= 30)
