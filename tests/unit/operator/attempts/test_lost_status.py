"""A job whose status was lost goes on where it was."""

from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_operator.world.world import DriverState
from support.operator.operator_world import Surroundings, running


def in_attempt(number: int) -> Surroundings:
    """Return a job that trains in an attempt, on the warm cluster of the one before it if its number is even."""
    around = Surroundings().to_running()
    for done in range(1, number):
        around.ends(Exit.LOST_PEER)
        around.step()
        around.deletions_done()
        around.now += 120
        around.step()
        around.pods_ready()
        around.step()
        around.ray_answers()
        around.step()
        around.runs(running(checkpoint=done))
        around.step()
    assert around.status["attempt"] == number
    return around


def without_status(around: Surroundings) -> Surroundings:
    """The status is lost, and the operator was restarted."""
    around.raw["status"] = {"observedGeneration": -1}
    around.observed = replace(around.observed, driver=None)
    return around


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_the_live_cluster_is_adopted_with_its_driver(number: int):
    around = in_attempt(number)
    cluster = around.status["attempts"][-1]["cluster"]
    todo = without_status(around).step()
    assert todo.delete == ()
    assert todo.follow.attempt == number
    around.ray_answers()
    around.runs(running(step=8))
    around.step()
    assert around.status["phase"] == "Training"
    assert (around.status["attempt"], around.status["attempts"][-1]["cluster"]) == (number, cluster)
    assert around.status["progress"]["step"] == 8
    assert len(around.submitted) == number


def test_the_next_attempt_has_a_number_that_the_fence_has_not_seen():
    around = without_status(in_attempt(2))
    around.step()
    around.ray_answers()
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.status["attempt"] == 3


def test_a_suspended_job_goes_on_after_the_attempts_that_it_has_had():
    around = in_attempt(2)
    around.edit(suspend=True)
    around.ends(Exit.PREEMPTED)
    around.step()
    around.deletions_done()
    without_status(around).step()
    assert around.status["phase"] == "Suspended"
    around.edit(suspend=False)
    around.step()
    assert around.status["attempt"] == 3


def test_a_job_that_is_being_suspended_still_saves():
    around = in_attempt(2)
    around.edit(suspend=True)
    without_status(around).step()
    around.step()
    assert all("deletionTimestamp" not in cluster["metadata"] for cluster in around.observed.rayclusters())
    around.ray_answers()
    around.runs()
    assert around.plan().orders.drain


def test_of_two_clusters_the_newer_one_is_kept():
    around = in_attempt(1)
    (old,) = around.observed.rayclusters()
    newer = {**old, "metadata": {**old["metadata"], "name": "sums-7f3a1-10", "uid": "newer"}}
    around.observed = replace(around.observed, children=(*around.observed.children, newer))
    todo = without_status(around).plan()
    assert [target.name for target in todo.delete if target.kind == "RayCluster"] == ["sums-7f3a1-1"]
    assert todo.status.attempt == 10


def test_a_driver_that_ray_does_not_know_any_more_is_followed_by_another_attempt():
    around = without_status(in_attempt(2))
    around.step()
    around.driver(state=DriverState.ABSENT)
    around.step()
    assert around.status["attempt"] == 3


def test_the_loss_is_reported():
    around = without_status(in_attempt(2))
    around.events.clear()
    around.step()
    assert [(event.kind, event.reason) for event in around.events][-1] == ("Warning", "StatusRebuilt")


def test_a_new_job_has_nothing_to_rebuild():
    around = Surroundings()
    around.step()
    assert around.status["attempt"] == 1
    assert "StatusRebuilt" not in {event.reason for event in around.events}
