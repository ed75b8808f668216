"""How an attempt that should end is made to end: drain, stop, delete the RayCluster, each after a deadline."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.control import DecidedBy, Decision, EngineState, Progress
from rljob_api.exits import Exit
from rljob_api.sections import Recovery
from rljob_operator.attempts.escalation import SHORTEST_DRAIN_S, STOP_S, drain_deadline_s
from rljob_operator.world.driver_news import GRACE, RayAnswer, after_answer, after_no_answer
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import DriverState
from support.operator.operator_world import DEFAULTS, Surroundings, engines, pods, raw_job, running


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def wait(around: Surroundings, seconds: float) -> None:
    """Time passes; a driver that runs shows signs of life."""
    around.now += seconds
    around.driver(beat_at=around.now, is_stopping=False)
    around.step()


def verdict(around: Surroundings) -> int | None:
    found: int | None = around.status["attempts"][0].get("verdict")
    return found


def is_cluster_deleted(around: Surroundings) -> bool:
    return any("deletionTimestamp" in cluster["metadata"] for cluster in around.observed.rayclusters())


@pytest.mark.parametrize("state", [DriverState.RUNNING, DriverState.UNKNOWN], ids=["ignores it", "unreachable"])
def test_a_suspended_driver_that_does_not_end_is_stopped_and_then_its_cluster_is_deleted(around, state):
    around.edit(suspend=True)
    around.step()
    around.driver(state=state)
    wait(around, 299)
    assert verdict(around) is None
    wait(around, 1)
    assert verdict(around) == Exit.PREEMPTED
    wait(around, STOP_S - 1)
    assert not is_cluster_deleted(around)
    wait(around, 1)
    assert is_cluster_deleted(around)
    first = around.status["attempts"][0]
    assert (first["exitCode"], first["cause"]) == (Exit.PREEMPTED, "Suspended")
    assert around.status["phase"] == "Suspended"
    assert [step["action"] for step in around.status["recovery"]] == ["DeleteCluster"]
    assert ("Warning", "DeleteCluster") in [(event.kind, event.reason) for event in around.events]


def test_the_time_that_a_suspended_driver_had_is_named(around):
    around.runs(
        running(save_seconds=100.0).model_copy(
            update={"progress": running(step=3).progress.model_copy(update={"last_step_seconds": {"train": 500.0}})}
        )
    )
    around.edit(suspend=True)
    around.step()
    wait(around, 1800)
    assert around.status["attempts"][0]["reason"] == "suspended, and not ended within 1800 s"


@pytest.mark.parametrize("state", [DriverState.RUNNING, DriverState.UNKNOWN], ids=["ignores it", "unreachable"])
def test_the_active_deadline_ends_a_job_whose_driver_does_not_end(state):
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 50})).to_running()
    around.driver(state=state)
    wait(around, 51)
    wait(around, STOP_S)
    assert around.condition("Failed")["reason"] == "DeadlineExceeded"
    assert is_cluster_deleted(around)


def test_the_successor_of_a_driver_that_did_not_stop_gets_another_cluster(around):
    around.now += 61
    around.step()
    assert verdict(around) == Exit.STALLED
    wait(around, STOP_S)
    assert around.status["attempts"][-1]["cluster"] == "sums-7f3a1-2"
    assert is_cluster_deleted(around)
    assert around.status["attempts"][0]["reason"].endswith("has not stopped for 180 s: its RayCluster is deleted")


def test_a_driver_that_stops_in_time_keeps_its_cluster(around):
    around.now += 61
    around.step()
    wait(around, STOP_S - 1)
    around.driver(state=DriverState.STOPPED)
    around.step()
    assert around.status["attempts"][-1]["cluster"] == "sums-7f3a1-1"
    assert not is_cluster_deleted(around)


def test_a_suspension_that_is_taken_back_stops_nothing(around):
    around.edit(suspend=True)
    around.step()
    around.edit(suspend=False)
    around.runs()
    around.step()
    assert "endingSince" not in around.status["attempts"][0]
    wait(around, 1000)
    assert verdict(around) is None


def test_a_driver_that_saves_by_order_has_its_deadline_also_when_the_suspension_is_taken_back(around):
    around.edit(suspend=True)
    around.step()
    around.edit(suspend=False)
    wait(around, 299)
    assert verdict(around) is None
    wait(around, 1)
    assert verdict(around) == Exit.PREEMPTED


@pytest.mark.parametrize("sections", [{"recovery": {"startTimeoutSeconds": 2**31 - 1}}, {}], ids=["manifest", "driver"])
def test_no_manifest_and_no_driver_chooses_the_time_that_a_job_of_higher_priority_waits(sections):
    around = Surroundings(raw_job(**sections)).to_running()
    slow = {} if sections else {"train": 1e9}
    known = running()
    around.runs(known.model_copy(update={"progress": known.progress.model_copy(update={"last_step_seconds": slow})}))
    decision = QueueDecision(Standing.PREEMPTED, "another needs it", preempted_for="ml/urgent")
    around.queue_decision = decision
    around.step()
    wait(around, DEFAULTS.longest_drain_s)
    assert verdict(around) == Exit.PREEMPTED
    wait(around, STOP_S)
    assert is_cluster_deleted(around)


def test_a_head_that_answers_again_has_the_whole_time_to_save(around):
    around.edit(suspend=True)
    around.step()
    around.driver(state=DriverState.UNKNOWN)
    wait(around, 200)
    around.driver(state=DriverState.RUNNING, turned_at=around.now)
    wait(around, 299)
    assert verdict(around) is None


SILENCES = st.lists(st.tuples(st.sampled_from([15, 19, 21, 25, 60, 250]), st.booleans()), min_size=1, max_size=8)


def flapped(around: Surroundings, pattern: list[tuple[int, bool]], most_s: float) -> float:
    """Ray answers in this pattern, again and again, until the RayCluster is deleted; return how long that took [s]."""
    began, answered_at = around.now, around.now
    while around.now - began <= most_s and not is_cluster_deleted(around):
        for pause_s, answers in pattern:
            around.now += pause_s
            driver = around.observed.driver
            if driver is None:
                break
            known = after_no_answer(driver, answered_at, around.now)
            if answers:
                known, answered_at = after_answer(known, RayAnswer(DriverState.RUNNING), around.now), around.now
            around.observed = replace(around.observed, driver=replace(known, is_stopping=False))
            around.step()
    return around.now - began


@given(SILENCES)
@settings(max_examples=25, deadline=None)
def test_a_suspension_ends_in_time_whatever_ray_answers_and_when(pattern):
    around = Surroundings().to_running()
    around.edit(suspend=True)
    around.step()
    longest_s = 2 * SHORTEST_DRAIN_S + STOP_S
    most_s = longest_s + 2 * sum(pause_s for pause_s, _ in pattern)
    assert flapped(around, pattern, most_s) <= most_s


@given(SILENCES)
@settings(max_examples=25, deadline=None)
def test_a_stop_that_is_ignored_ends_in_time_whatever_ray_answers_and_when(pattern):
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 1})).to_running()
    around.now += 2
    around.step()
    most_s = STOP_S + 2 * sum(pause_s for pause_s, _ in pattern)
    assert flapped(around, pattern, most_s) <= most_s


@given(SILENCES.filter(lambda pattern: any(answers for _, answers in pattern)))
@settings(max_examples=25, deadline=None)
def test_a_driver_that_hangs_is_stopped_in_time_if_ray_answers_now_and_then(pattern):
    around = Surroundings().to_running()
    answers = sum(answers for _, answers in pattern)
    rounds = GRACE / answers + 4
    most_s = 60 + STOP_S + rounds * sum(pause_s for pause_s, _ in pattern)
    assert flapped(around, pattern, most_s) <= most_s


def test_a_healthy_run_survives_an_hour_without_any_answer(around):
    around.driver(state=DriverState.UNKNOWN, turned_at=around.now)
    around.now += 3600
    around.step()
    around.observed = replace(
        around.observed, driver=after_answer(around.observed.driver, RayAnswer(DriverState.RUNNING), around.now)
    )
    around.step()
    assert verdict(around) is None
    assert len(around.status["attempts"]) == 1


def test_a_new_operator_looks_before_it_deletes(around):
    around.now += 61
    around.step()
    around.now += STOP_S
    around.observed = replace(around.observed, driver=None)
    around.step()
    wait(around, 29)
    assert not is_cluster_deleted(around)
    wait(around, 1)
    assert is_cluster_deleted(around)


@pytest.mark.parametrize(
    ("phases", "save_s", "deadline_s"),
    [({}, None, 600), ({"train": 10.0}, None, 300), ({"train": 500.0}, 100.0, 1800), ({"checkpoint": 900.0}, 200, 600)],
)
def test_a_drain_has_the_measured_time_of_a_step_and_a_save(phases, save_s, deadline_s):
    known = running()
    progress = known.progress.model_copy(update={"last_step_seconds": phases})
    status = known.model_copy(update={"progress": progress, "save_seconds": save_s})
    assert drain_deadline_s(status, Recovery(), 3600) == deadline_s


@pytest.mark.parametrize("longest_s", [300.0, 900.0, 1800.0])
def test_no_measured_time_and_no_manifest_gives_a_drain_more_than_the_cluster_does(longest_s: float):
    phases = {"train": 1e6}
    slow = running(progress=Progress(step=4, steps=10, last_step_seconds=phases), save_seconds=1e6)
    assert drain_deadline_s(slow, Recovery(start_timeout_seconds=10**6), longest_s) == longest_s
    assert drain_deadline_s(None, Recovery(start_timeout_seconds=10**6), longest_s) == longest_s


def test_a_drain_without_any_answer_has_the_time_of_a_start():
    assert drain_deadline_s(None, Recovery(start_timeout_seconds=700), 3600) == 700


@pytest.mark.parametrize("how", ["field", "patch"])
def test_no_pod_takes_longer_to_end_than_the_cluster_allows(how):
    endless = {"terminationGracePeriodSeconds": 2**31 - 1}
    patch = {"pods": {role: {"template": {"spec": endless}} for role in ("head", "trainer", "rollout")}}
    found = pods(**({"scheduling": endless} if how == "field" else patch))
    assert {pod["terminationGracePeriodSeconds"] for pod in found} == {int(DEFAULTS.longest_drain_s)}


@pytest.mark.parametrize("lost_pod_s", [45.0, 120.0, 600.0])
def test_a_head_on_a_lost_node_ends_its_attempt_and_does_not_hold_up_the_next_one(lost_pod_s):
    around = Surroundings(defaults=replace(DEFAULTS, lost_pod_s=lost_pod_s)).to_running()
    lost = tuple(replace(pod, is_deleting=True, gone_by=around.now, is_ready=False) for pod in around.observed.pods)
    around.observed = replace(around.observed, pods=lost)
    around.driver(state=DriverState.UNKNOWN, turned_at=around.now)
    around.now += lost_pod_s - 1
    around.step()
    assert len(around.status["attempts"]) == 1
    around.now += 2
    around.step()
    assert around.status["attempts"][0]["cause"] == "Infrastructure"
    left = tuple(cluster for cluster in around.observed.children if "deletionTimestamp" not in cluster["metadata"])
    around.observed = replace(around.observed, children=left)
    around.step()
    assert [cluster["metadata"]["name"] for cluster in around.observed.rayclusters()] == ["sums-7f3a1-2"]


@pytest.mark.parametrize(("has_head", "attempts"), [(True, 1), (False, 2)])
def test_silence_ends_a_run_only_if_the_api_server_shows_no_ready_head(around, has_head, attempts):
    if not has_head:
        seen = tuple(replace(pod, is_ready=pod.is_ready and not pod.is_head) for pod in around.observed.pods)
        around.observed = replace(around.observed, pods=seen)
    around.driver(state=DriverState.UNKNOWN, turned_at=around.now)
    around.now += 900
    around.step()
    assert len(around.status["attempts"]) == attempts


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_the_back_off_of_an_engine_counts_on_the_clock_of_its_driver(around, ahead_s):
    died = around.now + ahead_s
    dead = engines(EngineState.HEALTHY, EngineState.DEAD, since=died)
    before = Decision(time=died - 5, step=3, engine="engine-1", generation=0, by=DecidedBy.SUPERVISOR, reason="it died")
    around.runs(running(engines=dead, heartbeat=died, decisions=(before,)))
    assert around.plan().orders.engines == ()
    around.now += 1
    assert [order.engine for order in around.plan().orders.engines] == ["engine-1"]


@pytest.mark.parametrize(
    "section", [{"scheduling": {"tolerations": [{"operator": "Exists"}]}}, {"pods": {"trainer": {}}}]
)
def test_service_and_network_policy_are_made_again_also_after_an_edit(around, section):
    around.edit(**section)
    kept = tuple(child for child in around.observed.children if child["kind"] not in ("Service", "NetworkPolicy"))
    around.observed = replace(around.observed, children=kept)
    assert [wanted["kind"] for wanted in around.plan().apply][:2] == ["Service", "NetworkPolicy"]
