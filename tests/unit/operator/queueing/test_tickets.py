"""From a job to its ticket, and what the ledger remembers between two passes."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.exits import Exit
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.queueing.lease import LEASE_S
from rljob_operator.queueing.ledger import UNDECIDED, Changes, Ledger
from rljob_operator.queueing.schedule import schedule
from rljob_operator.queueing.ticket import Holding, Ticket
from rljob_operator.queueing.tickets import is_queued_here, shows, ticket_of
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import Pod
from support.operator.operator_world import DEFAULTS, Surroundings, admitted, raw_job
from support.operator.queue_world import NOW, RULES, holder, quotas, ticket, workers

KUEUE = replace(DEFAULTS, has_kueue=True)
RESERVED = QueueDecision(Standing.RESERVED, "it holds room", engines=2)
QUEUED = QueueDecision(Standing.QUEUED, "needs more", 1, NOW)
PREEMPTED = QueueDecision(Standing.PREEMPTED, "another needs it", preempted_for="ml/urgent")


def of(
    job: AdmittedJob, pods: tuple[Pod, ...] = (), has_pods: bool = False, granted: QueueDecision | None = None
) -> Ticket:
    return ticket_of(job, NOW, pods, has_pods or bool(pods), granted)


def job_with(decision: QueueDecision | None, **sections: Any) -> AdmittedJob:
    """Return a job whose status shows this decision."""
    around = Surroundings(raw_job(**sections))
    around.queue_decision = decision
    around.step()
    return admitted(around.raw)


def test_a_new_job_holds_nothing_and_wants_its_pods():
    found = of(admitted(raw_job()))
    assert (found.key, found.holding, found.wants) == ("ml/sums", Holding.NOTHING, True)
    assert [each.group for each in found.pods] == ["head", "trainer", "rollout"]
    assert found.gpus == 4


def test_the_reservation_stands_in_the_status():
    assert of(job_with(RESERVED)).holding is Holding.RESERVED
    assert of(job_with(QUEUED)).holding is Holding.NOTHING
    assert of(job_with(QUEUED)).first_since == NOW


def test_only_a_reservation_has_a_time_since_when_it_is_held():
    assert of(job_with(RESERVED)).since is not None
    assert of(job_with(QUEUED)).since is None


def test_a_job_from_before_there_was_a_queue_holds_what_it_has():
    assert of(job_with(None)).holding is Holding.RESERVED
    assert of(admitted(raw_job()), has_pods=True).holding is Holding.RESERVED


def test_a_preempted_job_leaves_until_its_pods_are_gone():
    around = Surroundings()
    around.queue_decision = RESERVED
    around.to_running()
    around.queue_decision = PREEMPTED
    around.step()
    job = admitted(around.raw)
    assert of(job, around.observed.pods).holding is Holding.LEAVING
    assert of(job, around.observed.pods).preempted_for == "ml/urgent"
    assert of(job).holding is Holding.NOTHING
    assert of(job).preempted_for is None


def test_a_job_that_has_ended_wants_nothing():
    around = Surroundings()
    around.queue_decision = RESERVED
    around.to_running()
    around.ends(0)
    around.step()
    found = of(admitted(around.raw), around.observed.pods)
    assert (found.holding, found.wants) == (Holding.LEAVING, False)


@pytest.mark.parametrize(("code", "wants"), [(0, False), (Exit.BAD_INPUT, True)])
def test_only_a_job_that_has_failed_is_resumed(code, wants):
    around = Surroundings()
    around.queue_decision = RESERVED
    around.to_running()
    around.ends(code)
    around.step()
    around.edit(recovery={"resumes": 1})
    assert of(admitted(around.raw)).wants is wants


def test_a_job_whose_engines_share_pods_with_the_learner_cannot_be_scaled():
    found = of(admitted(raw_job(placement="Colocated")))
    assert (found.engines, found.held_engines) == (None, None)


def test_a_suspended_job_wants_nothing():
    assert not of(admitted(raw_job(suspend=True))).wants


def test_a_job_that_waits_for_its_directory_wants_nothing():
    assert not of(replace(admitted(raw_job()), held_by="first")).wants


def test_what_a_pass_has_given_counts_before_the_status_shows_it():
    new = admitted(raw_job())
    assert of(new, granted=RESERVED).holding is Holding.RESERVED
    assert not shows(new, RESERVED)
    assert shows(job_with(RESERVED), RESERVED)


def test_a_status_without_a_number_of_engines_does_not_show_what_was_given():
    around = Surroundings(raw_job())
    around.queue_decision = one = replace(RESERVED, engines=1)
    around.step()
    assert shows(admitted(around.raw), one)
    del around.raw["status"]["queue"]["engines"]
    assert not shows(admitted(around.raw), one)


def test_a_job_that_a_pass_preempts_knows_for_whom_before_its_status_does():
    assert of(job_with(RESERVED), granted=PREEMPTED).preempted_for == "ml/urgent"
    assert of(job_with(RESERVED)).preempted_for is None


def test_what_a_pass_has_taken_counts_before_the_status_shows_it():
    job = job_with(RESERVED)
    assert of(job, granted=PREEMPTED).holding is Holding.LEAVING
    assert not shows(job, PREEMPTED)
    assert shows(admitted(raw_job()), PREEMPTED)


def test_a_job_that_was_suspended_before_it_got_its_room_does_not_hold_it():
    assert of(admitted(raw_job(suspend=True)), granted=RESERVED).holding is Holding.NOTHING


def test_pods_are_counted_on_their_nodes_by_group():
    pods = (
        Pod("h", "c", True, True, False, None, node="n1"),
        Pod("w", "c", False, True, False, None, "trainer", node="n2"),
    )
    waiting = Pod("v", "c", False, False, False, None, "rollout")
    of_tools = Pod("t", "", False, True, False, None, node="n3", tools_of="c")
    bound = of(job_with(RESERVED), (*pods, waiting, of_tools)).bound
    assert bound == {"head": ("n1",), "trainer": ("n2",), "tools": ("n3",)}


def scaled(engines: int) -> AdmittedJob:
    around = Surroundings()
    around.queue_decision = RESERVED
    around.to_running()
    around.scale(engines)
    return admitted(around.raw)


def test_engines_that_are_added_are_more_than_it_holds():
    found = of(scaled(6))
    assert (found.held_engines, found.engines) == (2, 6)
    assert [(each.group, each.count) for each in found.more] == [("rollout", 2)]
    assert of(scaled(6), granted=replace(RESERVED, engines=6)).more == ()


def test_engines_that_need_a_smaller_pod_are_more_than_it_holds():
    assert [(each.group, each.count) for each in of(scaled(5)).more] == [("rollout", 1), ("rollout-rest", 1)]


def test_engines_that_are_taken_away_ask_for_nothing():
    job = scaled(6)
    granted = replace(RESERVED, engines=6)
    assert of(job, granted=granted).held_engines == 6
    assert of(scaled(2), granted=granted).more == ()


# A reservation is for the pods that were granted.


def seen(around: Surroundings, granted: QueueDecision | None = None) -> Ticket:
    pods, clusters = around.observed.pods, around.observed.rayclusters()
    return ticket_of(admitted(around.raw), NOW, pods, bool(pods or clusters), granted, clusters)


def gpus_of(ticket: Ticket, resource: str) -> int:
    return sum(each.count * each.requests.get(resource, 0) // 1000 for each in ticket.pods)


def training() -> Surroundings:
    around = Surroundings(raw_job(runtime={"device": "Gpu"}, placement="Colocated", rollout={"engines": 2}))
    around.queue_decision = replace(RESERVED, granted=of(admitted(around.raw)).granted)
    return around.to_running()


@pytest.mark.parametrize("edit", [{"pods": {"gpuResource": "amd.com/gpu"}}, {"training": {"nodes": 4}}])
def test_an_edit_changes_nothing_of_what_pods_that_exist_take(edit):
    around = training()
    before = gpus_of(seen(around), "nvidia.com/gpu")
    around.edit(**edit)
    assert (seen(around).holding, seen(around).more) == (Holding.RESERVED, ())
    assert gpus_of(seen(around), "nvidia.com/gpu") == before > 0
    assert [each.group for each in seen(around).pods] == ["head", "workers"]


def test_a_reservation_is_not_for_pods_that_were_edited_before_they_were_made():
    small = Surroundings(raw_job(placement="Colocated", runtime={"device": "Gpu"}, rollout={"engines": 1}))
    granted = replace(RESERVED, granted=seen(small).granted, engines=None)
    small.edit(training={"gpusPerNode": 8, "nodes": 2}, rollout={"engines": 16})
    assert seen(small, granted).holding is Holding.NOTHING


def test_a_status_names_what_was_granted_and_an_edit_before_the_raycluster_is_made_gives_it_back():
    around = Surroundings(raw_job(placement="Colocated", runtime={"device": "Gpu"}, rollout={"engines": 1}))
    around.queue_decision = replace(RESERVED, granted=seen(around).granted, engines=None)
    todo = around.plan()
    around.raw["status"] = todo.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert seen(around).holding is Holding.RESERVED
    around.edit(training={"gpusPerNode": 8}, rollout={"engines": 8})
    assert seen(around).holding is Holding.NOTHING


def test_a_raycluster_that_somebody_suspends_takes_no_room():
    around = Surroundings(raw_job())
    around.queue_decision = RESERVED
    around.step()
    (cluster,) = around.observed.rayclusters()
    assert seen(around).pods != ()
    cluster["spec"]["suspend"] = True
    assert (seen(around).pods, seen(around).more) == ((), ())


def test_what_was_given_back_is_in_the_status_until_the_job_runs():
    lost = QueueDecision(Standing.REVOKED, "no nodes", revoked=2, retry_at=NOW + 60, first_since=NOW - 5)
    found = of(job_with(lost))
    assert (found.revoked, found.retry_at, found.first_since) == (2, NOW + 60, NOW - 5)
    assert of(job_with(RESERVED), granted=lost).holding is Holding.LEAVING


def test_a_reservation_that_no_status_shows_ends():
    found = ledger(ticket("a", workers(8)), ticket("b", workers(8), at=1))
    found.decide(quotas(ml=8), RULES, NOW)
    found.decide(quotas(ml=8), RULES, NOW + LEASE_S)
    assert (found.decision("ml/a").is_reserved, found.decision("ml/b").is_reserved) == (False, True)


def test_nothing_is_decided_about_a_job_that_has_changed_during_the_pass():
    found = ledger(ticket("a", workers(8)))
    asked = found.asked(NOW)
    found.put(ticket("a", workers(4)), is_shown=False)
    found.adopt(asked, schedule(asked.values(), quotas(ml=8), RULES, NOW), NOW)
    assert found.decision("ml/a") == UNDECIDED
    found.put(holder("b", workers(8)), is_shown=False)
    assert found.adopt(asked, {}, NOW) is None


def test_a_priority_class_is_read_from_the_pods():
    assert of(admitted(raw_job(scheduling={"priorityClassName": "high"}))).priority_class == "high"


@pytest.mark.parametrize(
    ("labels", "ours"), [(None, True), ({"a": "b"}, True), ({"kueue.x-k8s.io/queue-name": "q"}, False)]
)
def test_a_job_with_a_queue_of_kueue_is_not_queued_here(labels, ours):
    raw = raw_job()
    raw["metadata"]["labels"] = labels
    assert is_queued_here(admitted(raw, KUEUE)) is ours


def test_a_job_whose_field_names_a_queue_of_kueue_is_not_queued_here():
    assert not is_queued_here(admitted(raw_job(scheduling={"queue": "q"}), KUEUE))


def test_pods_of_a_job_of_another_queue_count_and_it_waits_for_nothing():
    found = of(admitted(raw_job(scheduling={"queue": "q"}), KUEUE), has_pods=True)
    assert (found.holding, found.wants) == (Holding.FOREIGN, False)


# The ledger.


def ledger(*tickets: Ticket) -> Ledger:
    found = Ledger()
    for each in tickets:
        found.put(each, is_shown=False)
    return found


def test_a_job_is_undecided_until_the_first_pass():
    found = ledger(ticket("a", workers(8)))
    assert found.decision("ml/a") == UNDECIDED
    found.decide(quotas(ml=8), RULES, NOW)
    assert found.decision("ml/a").is_reserved


def test_what_holds_room_keeps_it_before_the_first_pass():
    found = ledger(holder("a", workers(8)), replace(holder("b"), holding=Holding.LEAVING, preempted_for="ml/c"))
    assert found.decision("ml/a").is_reserved
    assert found.decision("ml/b").standing is Standing.PREEMPTED


def test_a_job_whose_status_does_not_show_its_pass_yet_keeps_the_time_at_which_it_got_room():
    found = ledger(ticket("a", workers(8)))
    found.decide(quotas(ml=8), RULES, NOW)
    found.put(replace(holder("a", workers(8)), since=None), is_shown=False)
    assert found.tickets["ml/a"].since == NOW


def test_a_job_created_between_a_decision_and_its_status_does_not_take_the_room():
    found = ledger(ticket("a", workers(8)))
    assert found.decide(quotas(ml=8), RULES, NOW).decided == ("ml/a",)
    found.put(ticket("b", workers(8), at=-9), is_shown=False)
    found.decide(quotas(ml=8), RULES, NOW)
    assert found.decision("ml/a").is_reserved
    assert not found.decision("ml/b").is_reserved


def test_a_pass_without_changes_changes_no_decision():
    found = ledger(ticket("a", workers(8)), ticket("b", workers(8), at=1))
    assert set(found.decide(quotas(ml=8), RULES, NOW).decided) == {"ml/a", "ml/b"}
    assert found.decide(quotas(ml=8), RULES, NOW) == Changes()


def test_jobs_behind_one_that_starts_only_move():
    found = ledger(holder("a", workers(8)), ticket("b", workers(8), at=1), ticket("c", workers(8), at=2))
    assert found.decide(quotas(ml=8), RULES, NOW) == Changes(("ml/b", "ml/c"))
    found.leave("ml/a", has_pods=False)
    assert found.decide(quotas(ml=8), RULES, NOW) == Changes(("ml/b",), ("ml/c",))


def test_a_job_that_waits_for_another_reason_has_not_only_moved():
    waits = QueueDecision(Standing.QUEUED, "needs 8", 2, 7.0)
    assert waits.differs_in_place_only(replace(waits, text="needs 9", position=1, first_since=8.0))
    for other in (
        replace(waits, position=None),
        replace(waits, standing=Standing.NEVER),
        replace(waits, preempted_for="ml/x"),
        replace(waits, engines=2),
    ):
        assert not waits.differs_in_place_only(other)
        assert not other.differs_in_place_only(waits)


def test_pods_of_a_job_that_was_deleted_take_room_until_they_are_gone():
    found = ledger(holder("a", workers(8)), ticket("b", workers(8)))
    assert found.leave("ml/a", has_pods=True)
    found.decide(quotas(ml=8), RULES, NOW)
    assert not found.decision("ml/b").is_reserved
    assert found.leave("ml/a", has_pods=False)
    found.decide(quotas(ml=8), RULES, NOW)
    assert found.decision("ml/b").is_reserved


def test_a_job_that_leaves_already_changes_nothing_when_it_is_deleted():
    found = ledger(holder("a", workers(8), holding=Holding.LEAVING, wants=False))
    assert not found.leave("ml/a", has_pods=True)


def test_only_changes_that_matter_ask_for_a_pass():
    found = ledger(ticket("a", workers(8)))
    assert not found.put(ticket("a", workers(8)), is_shown=False)
    assert found.put(ticket("a", workers(4)), is_shown=False)


def test_nobody_waits_where_all_hold_room():
    assert not ledger(holder("a", workers(8))).waits
    assert ledger(ticket("a", workers(8))).waits
    assert ledger(holder("a", workers(8), more=(workers(8),), engines=2, held_engines=1)).waits


def test_pods_that_do_not_grow_stay_as_many_as_they_were():
    trainer, rollout = workers(4, group="trainer"), workers(4, group="rollout")
    found = ledger(holder("a", trainer, rollout, more=(rollout,), engines=2, held_engines=1))
    found.decide(quotas(ml=12), RULES, NOW)
    held = found.tickets["ml/a"].pods
    assert [(each.group, each.count) for each in held] == [("trainer", 1), ("rollout", 2)]


def test_engines_that_were_given_are_held_from_then_on():
    found = ledger(holder("a", workers(4), more=(workers(4),), engines=2, held_engines=1))
    assert found.decision("ml/a").engines == 1
    found.decide(quotas(ml=8), RULES, NOW)
    assert found.decision("ml/a").engines == 2
    found.put(ticket("b", workers(4)), is_shown=False)
    found.decide(quotas(ml=8), RULES, NOW)
    assert not found.decision("ml/b").is_reserved
