"""A job that has begun goes on, and one that has ended stays ended, although its manifest would be refused today."""

from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_operator.world.world import DriverState
from support.operator.operator_world import Surroundings, raw_job, running

BREAKS_A_RULE = {"rollout": {"promptsPerStep": 5}, "training": {"stepsPerRollout": 3}}
UNKNOWN_FIELD = {"training": {"goneInThisVersion": 1}}
REQUIRED = {"model": {"checkpoint": 7}, "training": {"steps": "many"}}
REFUSALS = pytest.mark.parametrize("sections", [BREAKS_A_RULE, UNKNOWN_FIELD, REQUIRED])


def running_and_refused(sections: dict) -> Surroundings:
    """Return a job that trains when its manifest becomes invalid, as under a newer operator."""
    around = Surroundings().to_running()
    around.edit(**sections)
    assert around.job.spec is None
    return around


@REFUSALS
def test_a_training_job_is_followed_and_says_what_would_be_refused(sections: dict):
    around = running_and_refused(sections)
    assert around.step().follow is not None
    around.runs(running(step=7))
    around.now += 60
    around.step()
    assert around.status["phase"] == "Training"
    assert around.status["progress"]["step"] == 7
    admitted = around.condition("Admitted")
    assert (admitted["status"], admitted["reason"]) == ("True", "RefusedNow")
    assert "BadManifest" in admitted["message"]
    assert [event.kind for event in around.events if event.reason == "RefusedNow"] == ["Warning"]


@REFUSALS
def test_its_pods_are_freed_when_it_ends(sections: dict):
    around = running_and_refused(sections)
    around.step()
    around.ends(0)
    around.step()
    assert around.status["phase"] == "Succeeded"
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in around.observed.rayclusters())


@REFUSALS
def test_an_ended_job_stays_ended_and_is_not_announced_again(sections: dict):
    around = Surroundings().to_running()
    around.ends(0)
    around.step()
    around.deletions_done()
    around.step()
    around.deletions_done()
    around.edit(**sections)
    assert around.plan().is_empty


def test_a_broken_rule_does_not_keep_a_failed_driver_from_a_new_attempt():
    around = running_and_refused(BREAKS_A_RULE)
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.status["attempt"] == 2


def test_pods_are_not_changed_by_a_manifest_that_is_read_in_part():
    around = running_and_refused(UNKNOWN_FIELD)
    assert around.plan().apply == ()
    around.ends(Exit.LOST_PEER)
    around.step()
    assert around.status["attempt"] == 1
    assert around.status["attempts"][0]["exitCode"] == Exit.LOST_PEER
    assert around.status["phase"] == "Invalid"
    assert all("deletionTimestamp" in cluster["metadata"] for cluster in around.observed.rayclusters())
    around.deletions_done()
    assert around.plan().is_empty


def test_engines_are_not_scaled_to_a_default_that_stands_for_an_unreadable_number():
    around = Surroundings(raw_job(rollout={"engines": 4})).to_running()
    around.edit(rollout={"engines": "four"})
    around.runs(running(step=4))
    assert around.plan().orders.scale is None


def unreadable(around: Surroundings) -> None:
    """Make the manifest one of which nothing can be read."""
    around.raw["apiVersion"] = "rljob.dev/v9"
    assert around.job.readable is None


def test_a_job_whose_manifest_cannot_be_read_at_all_is_left_alone():
    around = Surroundings().to_running()
    unreadable(around)
    around.step()
    assert around.condition("Admitted")["reason"] == "BadManifest"
    assert around.condition("Training")["status"] == "True"
    assert around.status["phase"] == "Training"
    assert all("deletionTimestamp" not in cluster["metadata"] for cluster in around.observed.rayclusters())
    assert around.plan().is_empty


def test_an_ended_job_whose_manifest_cannot_be_read_at_all_is_freed():
    around = Surroundings().to_running()
    around.driver(state=DriverState.SUCCEEDED, exit_code=0)
    around.step()
    left = around.observed.rayclusters()[0]
    left["metadata"].pop("deletionTimestamp")
    around.observed = replace(around.observed, children=(left,))
    unreadable(around)
    todo = around.plan()
    assert [target.name for target in todo.delete] == [left["metadata"]["name"]]
    assert todo.status is None


def test_a_job_that_never_began_is_refused_as_before():
    around = Surroundings(raw_job(**UNKNOWN_FIELD))
    around.step()
    assert around.condition("Admitted")["status"] == "False"
    assert around.status["phase"] == "Invalid"
