"""A failed job is resumed in place, and a run directory never goes back and forth between two runs."""

import pytest

from rljob_api.exits import Exit
from rljob_operator.world.world import DriverState
from support.operator.operator_world import Surroundings, raw_job, running


def failed(code: Exit = Exit.BAD_INPUT, **sections: object) -> Surroundings:
    around = Surroundings(raw_job(**sections)).to_running()
    around.runs(running(checkpoint=2))
    around.step()
    around.ends(code)
    around.step()
    around.deletions_done()
    around.step()
    assert around.status["phase"] == "Failed"
    return around


def resume(around: Surroundings, number: int = 1) -> None:
    around.edit(recovery={"resumes": number})
    around.step()


def test_a_failed_job_is_resumed_by_a_higher_number():
    around = failed()
    resume(around)
    assert around.status["attempt"] == 2
    assert "completionTime" not in around.status
    assert around.condition("Failed")["status"] == "Unknown"
    assert [cluster["metadata"]["name"] for cluster in around.observed.rayclusters()] == ["sums-7f3a1-2"]
    assert "Resumed" in {event.reason for event in around.events}


def test_it_is_resumed_once_for_each_number():
    around = failed()
    resume(around)
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()
    around.runs()
    around.step()
    around.ends(Exit.BAD_INPUT)
    around.step()
    around.deletions_done()
    around.step()
    assert around.status["phase"] == "Failed"
    assert around.plan().is_empty
    resume(around, 2)
    assert around.status["attempt"] == 3


def test_the_budget_of_restarts_is_fresh():
    around = failed(Exit.FAILED, recovery={"driverRestarts": 0})
    around.edit(recovery={"driverRestarts": 1, "resumes": 1})
    around.step()
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()
    around.runs(running(checkpoint=2))
    around.step()
    around.ends(Exit.FAILED)
    around.step()
    assert around.status["attempt"] == 3


@pytest.mark.parametrize("sections", [{"suspend": True}, {"recovery": {"driverRestarts": 9}}])
def test_another_change_resumes_nothing(sections: dict):
    around = failed()
    around.edit(**sections)
    around.step()
    assert around.status["phase"] == "Failed"


def test_a_job_that_has_succeeded_is_not_resumed():
    around = Surroundings().to_running()
    around.ends(0)
    around.step()
    around.deletions_done()
    resume(around)
    assert around.status["phase"] == "Succeeded"


def test_a_first_attempt_with_a_number_is_no_resumption():
    around = Surroundings(raw_job(recovery={"resumes": 3}))
    around.step()
    assert around.status["attempts"][0]["resume"] == 3
    assert "Resumed" not in {event.reason for event in around.events}


def test_the_driver_does_not_get_the_number():
    around = Surroundings(raw_job(recovery={"resumes": 3, "driverRestarts": 2}))
    text = next(child["data"]["manifest.yaml"] for child in around.plan().apply if child["kind"] == "ConfigMap")
    assert "resumes" not in text
    assert "driverRestarts" in text


def ends_in_use(around: Surroundings, said: str) -> None:
    message = f"Job entrypoint command failed with exit code 75, last logs:\nTraceback\nFencedError: {said}\n"
    around.driver(state=DriverState.FAILED, exit_code=int(Exit.IN_USE), message=message, status=None)
    around.step()


def test_a_run_whose_directory_another_one_has_taken_fails_and_is_not_retried():
    around = Surroundings().to_running()
    ends_in_use(around, "/rljob/ml/sums: attempt 1 of other has taken it over from attempt 1 of mine")
    assert around.status["phase"] == "Failed"
    assert around.condition("Failed")["reason"] == "InUse"
    assert "has taken it over" in around.condition("Failed")["message"]


def test_a_number_that_the_fence_has_seen_is_skipped():
    around = Surroundings().to_running()
    uid = around.raw["metadata"]["uid"]
    ends_in_use(around, f"/rljob/ml/sums: attempt 1 of {uid} comes too late: attempt 7 of {uid} works there")
    assert [attempt["number"] for attempt in around.status["attempts"]] == [1, 8]


def test_a_later_attempt_of_another_job_is_not_followed():
    around = Surroundings().to_running()
    ends_in_use(around, "/rljob/ml/sums: attempt 1 of a comes too late: attempt 7 of a works there")
    assert around.status["phase"] == "Failed"
