"""How often a driver is started again: budgets and back-off of the run, of the infrastructure, and of suspensions."""

import pytest

from rljob_api.exits import Exit
from support.operator.operator_world import Surroundings, raw_job, running


@pytest.fixture
def around() -> Surroundings:
    return Surroundings().to_running()


def test_the_budget_ends_the_job():
    around = Surroundings(raw_job(recovery={"driverRestarts": 0})).to_running()
    around.ends(Exit.FAILED)
    around.step()
    around.deletions_done()
    assert around.condition("Failed")["reason"] == "BudgetExhausted"
    assert around.status["phase"] == "Failed"
    assert around.observed.rayclusters() == ()


def preempt(around: Surroundings, times: int, *, steps: int) -> None:
    """The driver is preempted so often, each time that many steps further."""
    for number in range(1, times + 1):
        around.runs(running(step=3 + number * steps, attempt=around.status["attempt"]))
        around.ends(Exit.PREEMPTED)
        around.step()
        around.now += 61
        around.deletions_done()
        around.step()
        around.pods_ready()
        around.step()
        around.ray_answers()
        around.step()


def test_a_status_holds_the_newest_100_attempts(around):
    preempt(around, 104, steps=1)
    assert [attempt["number"] for attempt in around.status["attempts"]] == list(range(6, 106))


def test_the_active_deadline_counts_from_the_first_start_however_many_attempts_follow():
    around = Surroundings(raw_job(scheduling={"activeDeadlineSeconds": 104 * 61 + 10})).to_running()
    started = around.status["startTime"]
    preempt(around, 104, steps=1)
    assert around.status["attempts"][0]["number"] > 1, "the first attempt is forgotten"
    assert around.status["startTime"] == started
    around.now += 11
    around.step()
    around.ends(Exit.FAILED)
    around.step()
    assert around.condition("Failed")["reason"] == "DeadlineExceeded"


def test_a_driver_that_is_preempted_again_and_again_backs_off_and_is_given_up(around):
    preempt(around, 1, steps=0)
    around.ends(Exit.PREEMPTED)
    around.step()
    assert around.step().requeue_after_s == 1
    preempt(around, 25, steps=0)
    failed = around.condition("Failed")
    assert (failed["reason"], around.status["attempt"]) == ("BudgetExhausted", 21)
    assert failed["message"].endswith("attempts without progress: 21")


def lose_a_pod(around: Surroundings, step: int) -> None:
    """A worker is lost, KubeRay replaces it, and the next driver starts."""
    around.runs(running(step=step, attempt=around.status["attempt"]))
    around.step()
    around.pods_ready(2)
    around.ends(Exit.LOST_PEER)
    around.step()
    around.deletions_done()
    around.now += 61
    around.step()
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()


def test_lost_pods_do_not_fail_a_job_that_makes_progress():
    around = Surroundings(raw_job(recovery={"driverRestarts": 0, "infrastructureRestarts": 1})).to_running()
    for step in (4, 5, 6, 7):
        lose_a_pod(around, step)
    assert around.condition("Failed")["status"] == "Unknown"
    assert [attempt.get("cause") for attempt in around.status["attempts"]] == [*["Infrastructure"] * 4, None]


def test_lost_pods_without_progress_have_a_budget_of_their_own():
    around = Surroundings(raw_job(recovery={"driverRestarts": 0, "infrastructureRestarts": 2})).to_running()
    for _ in range(3):
        assert around.condition("Failed")["status"] == "Unknown"
        lose_a_pod(around, 3)
    assert around.condition("Failed")["reason"] == "BudgetExhausted"


def test_suspensions_do_not_count(around):
    around = Surroundings(raw_job(recovery={"driverRestarts": 0, "infrastructureRestarts": 0})).to_running()
    around.edit(suspend=True)
    around.step()
    around.ends(Exit.PREEMPTED)
    around.step()
    around.edit(suspend=False)
    around.step()
    assert [attempt.get("cause") for attempt in around.status["attempts"]] == ["Suspended", None]
