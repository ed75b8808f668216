"""Who gets room, who waits, and for what."""

from dataclasses import replace

import pytest

from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.ticket import Holding
from rljob_operator.world.queue_decision import Standing
from support.operator.queue_world import NOW, RULES, decisions, holder, node, nodes, quotas, reserved, ticket, workers


def test_two_jobs_of_two_nodes_on_two_nodes_run_one_after_the_other():
    found = decisions(nodes(8, 8), ticket("a", workers(8, 2)), ticket("b", workers(8, 2), at=1))
    assert reserved(found) == {"a"}
    assert found["b"].standing is Standing.QUEUED
    assert found["b"].position == 1
    assert found["b"].text == "needs 16 × nvidia.com/gpu; matching nodes have 0 × nvidia.com/gpu free"


def test_two_jobs_created_at_once_never_both_get_the_last_gpus():
    found = decisions(quotas(ml=8), ticket("b", workers(8)), ticket("a", workers(8)))
    assert reserved(found) == {"a"}


def test_a_job_that_fits_exactly_gets_room():
    assert reserved(decisions(quotas(ml=16), ticket("a", workers(8, 2)))) == {"a"}


def test_what_others_use_of_a_quota_is_not_given_away():
    seen = quotas(ml=16)
    (quota,) = seen.quotas["ml"]
    used = dict.fromkeys(quota.hard, 1000)
    found = decisions(replace(seen, quotas={"ml": (replace(quota, used=used),)}), ticket("a", workers(8, 2)))
    assert "ResourceQuota gpus leaves 15 × nvidia.com/gpu" in found["a"].text


def test_a_higher_priority_comes_first_whatever_the_age():
    old, new = ticket("old", workers(8)), ticket("new", workers(8), at=9, priority_class="high")
    found = decisions(quotas(ml=8), old, new)
    assert reserved(found) == {"new"}


def test_positions_follow_the_order():
    found = decisions(quotas(ml=8), *(ticket(name, workers(8), at=i) for i, name in enumerate("abcd")))
    assert [found[name].position for name in "abcd"] == [None, 1, 2, 3]


def test_a_job_that_can_never_fit_hinders_nobody():
    found = decisions(quotas(ml=8), ticket("huge", workers(8, 2)), ticket("small", workers(8), at=1))
    assert found["huge"].standing is Standing.NEVER
    assert found["huge"].text == "needs 16 × nvidia.com/gpu; ResourceQuota gpus allows 8 × nvidia.com/gpu in all"
    assert reserved(found) == {"small"}


def test_pods_that_leave_take_room_until_they_are_gone():
    leaving = holder("a", workers(8), holding=Holding.LEAVING, wants=False)
    found = decisions(quotas(ml=8), leaving, ticket("b", workers(8), at=1))
    assert found["b"].standing is Standing.QUEUED
    assert found["b"].text.endswith("waits until ml/a have left")


def test_what_leaves_is_kept_for_the_job_that_waits_for_it():
    leaving = holder("a", workers(8), holding=Holding.LEAVING, wants=False)
    small = holder("c", workers(4))
    jobs = ticket("b", workers(12), at=1), ticket("d", workers(4), at=2)
    assert reserved(decisions(quotas(ml=16), leaving, small, *jobs)) == {"c"}


def test_pods_of_another_queue_take_room():
    foreign = holder("kueue", workers(8), holding=Holding.FOREIGN)
    found = decisions(quotas(ml=8), foreign, ticket("b", workers(8)))
    assert "kueue" not in found
    assert found["b"].standing is Standing.QUEUED


# Back-fill.


def test_a_small_job_overtakes_the_first_one_for_a_while():
    running, big = holder("r", workers(4)), ticket("big", workers(8), at=1)
    found = decisions(quotas(ml=8), running, big, ticket("small", workers(4), at=2), at=5)
    assert reserved(found) == {"r", "small"}
    assert found["big"].first_since is not None


@pytest.mark.parametrize(("waited_s", "starts"), [(RULES.patience_s - 1, True), (RULES.patience_s, False)])
def test_nobody_overtakes_the_first_one_after_its_patience(waited_s, starts):
    running = holder("r", workers(4))
    big = ticket("big", workers(8), at=1, first_since=NOW + 5)
    found = decisions(quotas(ml=8), running, big, ticket("small", workers(4), at=2), at=5 + waited_s)
    assert ("small" in reserved(found)) is starts


def test_only_the_first_one_s_patience_counts():
    running = holder("r", workers(4))
    first = ticket("first", workers(8), at=1, first_since=NOW + 90)
    second = ticket("second", workers(8), at=2, first_since=NOW)
    small = ticket("small", workers(4), at=3)
    rules = replace(RULES, patience_s=100)
    assert "small" in reserved(decisions(quotas(ml=8), running, first, second, small, rules=rules, at=110))


def test_a_quota_that_is_full_does_not_hold_up_other_namespaces():
    rules = replace(RULES, patience_s=0)
    seen = Snapshot(quotas(ml=8).quotas, {}, nodes(8, 8).nodes, ())
    first = ticket("b", workers(8), at=1)
    found = decisions(seen, holder("a", workers(8)), first, ticket("other/c", workers(8), at=2), rules=rules)
    assert reserved(found) == {"a", "other/c"}


def test_the_first_one_keeps_the_emptiest_nodes_and_others_get_the_rest():
    rules = replace(RULES, patience_s=0)
    running = (
        holder("r", workers(8), bound={"workers": ("node-0",)}),
        holder("s", workers(4), bound={"workers": ("node-1",)}),
    )
    big, small = ticket("big", workers(8, 2), at=1), ticket("small", workers(2), at=2)
    assert "small" not in reserved(
        decisions(nodes(8, 8, 2), *running, big, replace(small, pods=(workers(4),)), rules=rules)
    )
    assert "small" in reserved(decisions(nodes(8, 8, 2), *running, big, small, rules=rules))


def test_of_the_nodes_it_could_use_the_first_one_keeps_the_one_with_most_room():
    rules = replace(RULES, patience_s=0)
    full = [holder(f"r{i}", workers(8), bound={"workers": (f"node-{i}",)}) for i in (0, 2)]
    half = holder("s", workers(4), bound={"workers": ("node-1",)})
    jobs = ticket("big", workers(8), at=1), ticket("small", workers(4), at=2)
    assert "small" not in reserved(decisions(nodes(8, 8, 8), *full, half, *jobs, rules=rules))


def test_the_first_that_lacks_nodes_is_kept_room_behind_one_that_lacks_quota():
    rules = replace(RULES, patience_s=0)
    seen = Snapshot(quotas(lab=1).quotas, {}, nodes(8).nodes, ())
    held = holder("lab/r", workers(1), bound={"workers": ("node-0",)})
    jobs = ticket("lab/a", workers(1), at=1), ticket("big", workers(8), at=2), ticket("small", workers(4), at=3)
    assert reserved(decisions(seen, held, *jobs, rules=rules)) == {"lab/r"}


# Nodes.


def test_a_gang_needs_all_its_nodes_at_once():
    running = holder("r", workers(1), bound={"workers": ("node-0",)})
    found = decisions(nodes(8, 8), running, ticket("a", workers(8, 2)))
    assert reserved(found) == {"r"}
    assert found["a"].text == "needs 16 × nvidia.com/gpu; matching nodes have 15 × nvidia.com/gpu free"


def test_enough_gpus_on_the_wrong_nodes_are_not_enough():
    running = [holder(f"r{i}", workers(4), bound={"workers": (f"node-{i}",)}) for i in range(2)]
    found = decisions(nodes(8, 8), *running, ticket("a", workers(8)))
    assert found["a"].text == "matching nodes have enough free, but not on single nodes"


def test_a_reservation_without_pods_yet_takes_room_on_nodes():
    found = decisions(nodes(8, 8), holder("r", workers(8)), ticket("a", workers(8, 2)))
    assert reserved(found) == {"r"}


def test_nodes_are_not_looked_at_where_they_may_not_be_seen():
    assert reserved(decisions(quotas(), ticket("a", workers(8, 99)))) == {"a"}


def test_a_cordoned_node_has_no_room():
    seen = Snapshot({}, {}, (replace(node("n", 8), is_schedulable=False),), ())
    assert decisions(seen, ticket("a", workers(8)))["a"].standing is Standing.QUEUED


def test_a_selector_is_respected():
    seen = Snapshot({}, {}, (node("n", 8), node("m", 8, pool="a")), ())
    jobs = ticket("a", workers(8, pool="a")), ticket("b", workers(8, pool="a"), at=1), ticket("c", workers(8), at=2)
    assert reserved(decisions(seen, *jobs)) == {"a", "c"}


# Nodes that may come.


def test_where_nodes_may_come_one_job_at_a_time_waits_for_them():
    jobs = [ticket(name, workers(8, 2), at=i) for i, name in enumerate("abc")]
    runs = holder("r", workers(8, 2), bound={"workers": ("node-0", "node-1")})
    assert reserved(decisions(nodes(8, 8, coming=None), runs, *jobs)) == {"r", "a"}


def test_no_job_waits_for_nodes_while_pods_of_another_have_none_yet():
    two = [ticket(name, workers(8, 2), at=i) for i, name in enumerate("ab")]
    assert reserved(decisions(nodes(8, 8, coming=None), *two)) == {"a"}
    first = holder("a", workers(8, 2), bound={"workers": ("node-0",)})
    assert reserved(decisions(nodes(8, 8, coming=None), first, two[1])) == {"a"}


def test_a_job_behind_the_one_that_waits_for_nodes_gets_what_is_free():
    waits = holder("a", workers(8, 2), bound={"workers": ("node-0",)})
    found = decisions(nodes(8, 4, coming=None), waits, ticket("c", workers(4), at=1))
    assert reserved(found) == {"a", "c"}


# Preemption.


def test_a_higher_priority_sends_the_lowest_and_newest_away_and_no_more_than_needed():
    running = [
        holder("old", workers(8), at=0),
        holder("new", workers(8), at=5),
        holder("low", workers(4), at=1, priority_class="low"),
    ]
    urgent = ticket("urgent", workers(8), at=9, priority_class="high")
    found = decisions(quotas(ml=20), *running, urgent)
    assert {key for key, decision in found.items() if decision.standing is Standing.PREEMPTED} == {"new"}
    assert found["new"].text == "ml/urgent has a higher priority and needs its room"
    assert found["urgent"].standing is Standing.QUEUED
    assert found["urgent"].text.endswith("waits until ml/new have left")


def test_nobody_is_sent_away_if_that_is_not_enough():
    running = holder("a", workers(8), priority_class="low"), holder("b", workers(8), priority_class="high")
    found = decisions(quotas(ml=16), *running, ticket("urgent", workers(16), at=9, priority_class="high"))
    assert reserved(found) == {"a", "b"}


def test_an_equal_priority_sends_nobody_away():
    assert reserved(decisions(quotas(ml=8), holder("a", workers(8)), ticket("b", workers(8), at=1))) == {"a"}


def test_a_class_that_does_not_preempt_waits():
    found = decisions(quotas(ml=8), holder("a", workers(8)), ticket("b", workers(8), at=1, priority_class="polite"))
    assert reserved(found) == {"a"}


def test_jobs_that_leave_already_are_enough():
    running = holder("a", workers(8)), holder("b", workers(8), holding=Holding.LEAVING, preempted_for="ml/urgent")
    found = decisions(quotas(ml=16), *running, ticket("urgent", workers(8), at=9, priority_class="high"))
    assert found["a"].is_reserved
    assert found["b"].standing is Standing.PREEMPTED


def test_a_lower_priority_does_not_take_what_was_freed_by_preemption():
    leaving = holder("a", workers(8), holding=Holding.LEAVING, preempted_for="ml/urgent")
    jobs = ticket("urgent", workers(12), at=9, priority_class="high"), ticket("small", workers(4), at=1)
    assert reserved(decisions(quotas(ml=12), leaving, *jobs)) == set()


# Fair share.


def test_with_fair_share_the_namespace_with_less_comes_first():
    seen = nodes(8, 8, 8)
    jobs = [ticket(f"a/{i}", workers(8), at=i) for i in range(3)] + [ticket("b/0", workers(8), at=9)]
    assert reserved(decisions(seen, *jobs)) == {"a/0", "a/1", "a/2"}
    assert reserved(decisions(seen, *jobs, rules=replace(RULES, fair_share=True))) == {"a/0", "b/0", "a/1"}


def test_fair_share_counts_what_is_held_and_priority_goes_before_it():
    rules = replace(RULES, fair_share=True)
    held = holder("a/0", workers(8))
    jobs = ticket("a/1", workers(8), at=1, priority_class="high"), ticket("b/0", workers(8), at=2)
    assert reserved(decisions(nodes(8, 8), held, *jobs, rules=rules)) == {"a/0", "a/1"}


# A quota that was lowered, and elastic engines.


def test_a_quota_lowered_under_running_jobs_disturbs_nobody():
    running = holder("a", workers(8)), holder("b", workers(8))
    found = decisions(quotas(ml=4), *running, ticket("c", workers(2), at=1))
    assert reserved(found) == {"a", "b"}
    assert "leaves 0" in found["c"].text


def grown(most: int) -> object:
    job = holder("a", workers(4), more=(workers(4),), engines=2, held_engines=1)
    return decisions(quotas(ml=most), job)["a"]


def test_engines_that_are_added_need_room_too():
    assert grown(8).engines == 2
    assert grown(7).engines == 1
    assert grown(7).is_reserved
    assert "ResourceQuota gpus" in grown(7).text
