"""Reservations without nodes: who is lent one, for how long, and what the others get meanwhile."""

from dataclasses import replace

import pytest

from rljob_operator.capacity.demand import Container, Pods
from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.lease import CREDIT_S, LONGEST_RETRY_S, RETRY_S, SHORTEST_CREDIT_S, credit_s, retry_s
from rljob_operator.queueing.ticket import Holding, Rules
from rljob_operator.world.queue_decision import Standing
from support.operator.gangless import Gangless
from support.operator.queue_world import (
    GPU,
    NOW,
    RULES,
    decisions,
    holder,
    node,
    nodes,
    quotas,
    reserved,
    ticket,
    workers,
)

FULL = holder("r", workers(8, 2), bound={"workers": ("node-0", "node-1")}, has_started=True)
FIXED = nodes(8, 8, coming=None)
"""two nodes; nobody has said whether others may come"""


def lent(name: str = "a", *bound: str, **more: object):
    """Return a job of two nodes that was lent a reservation, and has some of its pods."""
    return holder(name, workers(8, 2), bound={"workers": bound} if bound else {}, **more)


@pytest.mark.parametrize(("held_s", "standing"), [(CREDIT_S - 1, "Reserved"), (CREDIT_S, "Revoked")])
def test_a_reservation_without_nodes_is_given_back_in_time(held_s, standing):
    found = decisions(FIXED, FULL, lent(), at=held_s)["a"]
    assert found.standing == standing


def test_what_is_given_back_says_why_and_when_it_is_tried_again():
    found = decisions(FIXED, FULL, lent(first_since=NOW - 50), at=CREDIT_S)["a"]
    assert found.text.startswith("no nodes have come for 2 of its pods within 15 min")
    assert (found.revoked, found.retry_at, found.first_since) == (1, NOW + CREDIT_S + RETRY_S, NOW - 50)


def test_the_time_begins_when_the_pods_are_due():
    assert decisions(FIXED, FULL, lent(due=NOW + 500), at=CREDIT_S + 499)["a"].is_reserved
    assert not decisions(FIXED, FULL, lent(due=NOW + 500), at=CREDIT_S + 500)["a"].is_reserved


def test_a_job_that_trains_keeps_its_reservation_when_it_loses_a_node():
    assert decisions(FIXED, lent("a", "node-0", "gone", has_started=True), at=9 * CREDIT_S)["a"].is_reserved


def test_of_two_jobs_with_half_of_their_pods_only_the_last_one_gives_back():
    jobs = lent("a", "node-0"), lent("b", "node-1", at=1)
    for waited_s in (CREDIT_S + 1, 50 * CREDIT_S):
        found = decisions(FIXED, *jobs, at=waited_s)
        assert (found["a"].standing, found["b"].standing) == (Standing.RESERVED, Standing.REVOKED)


def test_while_one_leaves_its_nodes_the_other_is_not_judged():
    leaves = replace(lent("b", "node-1", at=1), holding=Holding.LEAVING)
    assert decisions(FIXED, lent("a", "node-0"), leaves, at=CREDIT_S + 1)["a"].is_reserved


def test_a_job_that_gave_back_is_not_lent_again_before_its_time_but_gets_room():
    again = ticket("a", workers(8, 2), revoked=1, retry_at=NOW + 100)
    assert not decisions(FIXED, FULL, again, at=99)["a"].is_reserved
    assert decisions(FIXED, FULL, again, at=100)["a"].is_reserved
    assert decisions(FIXED, again, at=1)["a"].is_reserved


def test_others_see_how_often_a_job_has_given_back_until_it_runs():
    found = decisions(FIXED, FULL, ticket("a", workers(8, 2), revoked=3, retry_at=NOW + 9), at=1)["a"]
    assert (found.revoked, found.retry_at) == (3, NOW + 9)


def test_tries_become_shorter_and_rarer():
    assert [credit_s(number) for number in (0, 1, 2, 99)] == [CREDIT_S, CREDIT_S / 2, CREDIT_S / 4, SHORTEST_CREDIT_S]
    assert [retry_s(number) for number in (1, 2, 3, 99)] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, LONGEST_RETRY_S]


def test_tries_of_others_for_the_same_nodes_make_a_try_shorter():
    failed = ticket("b", workers(8, 3), revoked=2, retry_at=NOW + 9 * CREDIT_S)
    elsewhere = ticket("c", workers(8, 3, pool="x"), revoked=2, retry_at=NOW + 9 * CREDIT_S)
    assert decisions(FIXED, FULL, lent(), elsewhere, at=CREDIT_S / 4)["a"].is_reserved
    assert not decisions(FIXED, FULL, lent(), failed, at=CREDIT_S / 4)["a"].is_reserved


# Who is lent a reservation.


def test_preemption_comes_before_a_reservation_without_nodes():
    low = replace(FULL, priority_class="low")
    found = decisions(FIXED, low, ticket("high", workers(8), at=5, priority_class="high"), at=10)
    assert (found["r"].standing, found["high"].standing) == (Standing.PREEMPTED, Standing.QUEUED)


def test_room_that_others_leave_comes_before_a_reservation_without_nodes():
    leaves = replace(FULL, holding=Holding.LEAVING, wants=False)
    assert decisions(FIXED, leaves, ticket("a", workers(8, 2)))["a"].text.endswith("waits until ml/r have left")


def test_each_set_of_nodes_is_lent_to_one_job():
    seen = Snapshot({}, {}, tuple(node(f"{pool}{i}", 8, pool=pool) for pool in "xy" for i in range(2)), None)
    full = [holder(pool, workers(8, 2), bound={"workers": (f"{pool}0", f"{pool}1")}, has_started=True) for pool in "xy"]
    wait = [
        ticket(f"{pool}{i}", workers(8, 2, pool=pool), at=10 * i + (pool == "y")) for pool in "xy" for i in range(3)
    ]
    both = ticket("both", workers(8, 2), at=99)
    assert reserved(decisions(seen, *full, *wait, both)) == {"x", "y", "x0", "y0"}


def test_pods_that_no_node_could_let_in_are_no_hindrance_to_others():
    nowhere = [ticket(f"bad{i}", workers(16), at=i) for i in range(3)]
    assert reserved(decisions(FIXED, FULL, *nowhere, ticket("good", workers(8, 2), at=9))) == {"r", "bad0", "good"}


def test_nothing_is_lent_where_the_nodes_that_can_come_are_not_enough():
    for count, is_lent in ((1, False), (2, True)):
        coming = tuple(node(f"new-{i}", 8) for i in range(count))
        found = decisions(replace(FIXED, coming=coming), FULL, ticket("a", workers(8, 2)))
        assert found["a"].is_reserved is is_lent


def test_nothing_is_lent_of_a_quota_that_another_job_was_given_in_the_same_pass():
    seen = replace(FIXED, quotas={"ml": quotas(ml=24).quotas["ml"]})
    jobs = ticket("a", workers(8, 2), at=1), ticket("b", Pods("cpu", 1, (Container({GPU: 0}, {}),), {}, (), None), at=2)
    assert "a" not in reserved(decisions(seen, FULL, *jobs))
    assert "a" in reserved(decisions(replace(FIXED, quotas={"ml": quotas(ml=32).quotas["ml"]}), FULL, *jobs[:1]))


def test_while_pods_have_no_nodes_nobody_else_gets_nodes_that_they_could_take():
    seen = nodes(8, 8, 4, coming=None)
    waits = lent("a", "node-0")
    half = holder("h", workers(4), bound={"workers": ("node-1",)}, has_started=True)
    found = decisions(seen, waits, half, ticket("b", workers(4), at=2), ticket("c", workers(4), at=3))
    assert reserved(found) == {"a", "h", "b"}  # on node-2, where no pod of `a` fits


def test_no_younger_job_is_lent_nodes_before_the_first_that_waits_for_them():
    first = ticket("a", workers(8, 2), revoked=1, retry_at=NOW + 500)
    assert reserved(decisions(FIXED, FULL, first, ticket("b", workers(8, 2), at=1), at=9)) == {"r"}


def test_a_job_that_needs_more_nodes_than_there_are_stops_nobody():
    rules = replace(RULES, patience_s=0)
    large = ticket("large", workers(8, 3), revoked=1, retry_at=NOW + 500)
    half = holder("h", workers(4), bound={"workers": ("node-0",)}, has_started=True)
    assert "small" in reserved(decisions(FIXED, half, large, ticket("small", workers(4), at=1), rules=rules, at=9))


# Searches that give up.


def test_a_job_for_which_the_search_gives_up_is_tried_even_where_no_nodes_come(monkeypatch):
    monkeypatch.setattr("rljob_operator.capacity.packing.MOST_PLACES", -10_000)
    found = decisions(nodes(8, 8), ticket("a", workers(8, 2)))
    assert found["a"].is_reserved


# A hundred jobs that can never run.


@pytest.mark.parametrize(
    "pods", [workers(8, 9), workers(16), workers(8, 1, pool="nowhere")], ids=["large", "pod", "pool"]
)
def test_a_hundred_jobs_that_can_never_run_delay_others_by_minutes(pods):
    """All older than a job for which an autoscaler brings a node as soon as it sees its pods for two minutes."""
    queue = Gangless(nodes(8, 8, coming=None), Rules())
    queue.comes(ticket("r", workers(8, 2)), 1e9)
    queue.live(30)
    for number in range(100):
        queue.comes(ticket(f"team-{number}/bad", pods), 1e9)
        queue.now += 1
    queue.live(30)
    queue.comes(ticket("good", workers(8)), 600)
    while "ml/good" not in queue.waited:
        queue.live(30)
        good = queue.tickets["ml/good"]
        if (
            good.holding is Holding.RESERVED
            and queue.now - (good.since or 0) >= 120
            and len(queue.seen.nodes or ()) < 3
        ):
            queue.grow(node("new", 8))
    assert queue.waited["ml/good"] <= 30 * 60
