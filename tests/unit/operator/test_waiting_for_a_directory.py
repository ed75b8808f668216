"""A job whose run directory belongs to another job waits, and says for whom."""

from dataclasses import replace

import pytest

from rljob_api.exits import Exit
from rljob_operator.plan import LOOK_AGAIN_S
from rljob_operator.queueing.ledger import IDLE
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.run_claims import RunIndex, claim_of
from rljob_operator.world.world import Storage
from support.operator.operator_world import DEFAULTS, Surroundings, raw_job

SHARED = Storage({"persistentVolumeClaim": {"claimName": "runs"}})
FIRST_UID = "11111111-0000-4000-8000-000000000000"


def pair() -> tuple[Surroundings, Surroundings]:
    """Return a job that trains, and another one that names its directory."""
    raw, defaults = raw_job("first"), replace(DEFAULTS, storage=SHARED)
    first = Surroundings({**raw, "metadata": {**raw["metadata"], "uid": FIRST_UID}}, defaults).to_running()
    return first, Surroundings(raw_job("second", checkpoint={"directory": first.status["directory"]}), defaults)


def sees(second: Surroundings, first: Surroundings) -> None:
    claim = claim_of(first.raw)
    second.observed = replace(second.observed, runs={claim.place: {claim.uid: claim}} if claim else {})


def failed(around: Surroundings) -> None:
    around.ends(Exit.BAD_INPUT)
    around.step()
    around.deletions_done()
    around.step()


def test_it_gets_nothing_and_says_who_has_the_directory():
    first, second = pair()
    sees(second, first)
    todo = second.step()
    assert second.observed.children == ()
    assert second.status["phase"] == "Queued"
    assert second.status.get("attempts", []) == []
    assert second.condition("Ready")["reason"] == "DirectoryInUse"
    said = "belongs to RLJob first; this job begins when that one has ended or is deleted"
    assert second.condition("Ready")["message"] == f"the run directory {first.status['directory']} {said}"
    assert todo.requeue_after_s == LOOK_AGAIN_S
    assert second.plan().is_empty


def test_it_holds_no_room_in_the_queue_meanwhile():
    first, second = pair()
    sees(second, first)
    second.queue_decision = IDLE
    second.step()
    assert second.condition("QuotaReserved")["reason"] == "DirectoryInUse"
    assert second.condition("Ready")["reason"] == "DirectoryInUse"
    assert "queue" not in second.status


def test_it_does_not_wait_for_a_job_that_never_fits():
    _, second = pair()
    big = Surroundings(raw_job("big", checkpoint={"directory": "/rljob/ml/first"}), second.defaults)
    big.raw["metadata"]["uid"] = FIRST_UID
    big.queue_decision = QueueDecision(Standing.NEVER, "needs 64 GPUs")
    big.step()
    sees(second, big)
    second.step()
    assert [attempt["number"] for attempt in second.status["attempts"]] == [1]


@pytest.mark.parametrize("stopped", [lambda first: failed(first), lambda first: first.raw.update(status={})])
def test_it_begins_when_the_first_has_ended(stopped):
    first, second = pair()
    sees(second, first)
    second.step()
    stopped(first)
    sees(second, first)
    second.step()
    assert [attempt["number"] for attempt in second.status["attempts"]] == [1]
    assert second.status["directory"] == "/rljob/ml/first"


def test_a_suspended_job_keeps_its_directory():
    first, second = pair()
    first.edit(suspend=True)
    first.step()
    first.ends(Exit.PREEMPTED)
    first.step()
    assert first.status["phase"] == "Suspended"
    sees(second, first)
    second.step()
    assert second.condition("Ready")["reason"] == "DirectoryInUse"


def test_a_failed_job_resumes_only_when_its_directory_is_free():
    first, second = pair()
    failed(first)
    second.to_running()
    sees(first, second)
    first.edit(recovery={"resumes": 1})
    first.step()
    assert (first.status["phase"], first.status["attempt"]) == ("Failed", 1)
    failed(second)
    sees(first, second)
    first.step()
    assert first.status["attempt"] == 2


def test_a_job_that_has_begun_never_waits_for_one_that_has_begun_too():
    first, second = pair()
    second.to_running()
    sees(second, first)
    second.ends(Exit.FAILED)
    second.step()
    assert second.status["attempt"] == 2


@pytest.mark.parametrize(
    ("held", "wanted"), [("/rljob/ml/exp", "/rljob/ml/exp/lr2"), ("/rljob/ml/exp/lr2", "/rljob/ml/exp")]
)
def test_it_waits_for_a_run_inside_of_its_directory_or_around_it(held: str, wanted: str):
    raw = raw_job("first", checkpoint={"directory": held})
    defaults = replace(DEFAULTS, storage=SHARED)
    first = Surroundings({**raw, "metadata": {**raw["metadata"], "uid": FIRST_UID}}, defaults).to_running()
    second = Surroundings(raw_job("second", checkpoint={"directory": wanted}), defaults)
    index, claim = RunIndex(), claim_of(first.raw)
    assert claim is not None
    index.put(claim)
    second.observed = replace(second.observed, runs=index.runs)
    second.step()
    assert second.observed.children == ()
    assert second.condition("Ready")["reason"] == "DirectoryInUse"
    index.remove(claim.uid)
    second.step()
    assert second.status["phase"] == "Provisioning"
