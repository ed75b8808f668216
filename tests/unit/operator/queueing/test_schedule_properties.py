"""Whatever comes and goes: never too much, gangs whole, nobody starves, and the same answer each time."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.queueing.schedule import rank, schedule
from rljob_operator.queueing.ticket import Holding
from rljob_operator.world.queue_decision import Standing
from support.operator.queue_world import NOW, RULES, Queue, nodes, quotas, ticket, workers

CLASSES = st.sampled_from([None, None, "low", "high", "polite"])
SIZES = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 2))
PLACES = st.sampled_from(["a", "b"])
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("comes"), st.tuples(SIZES, CLASSES, PLACES)),
        st.tuples(st.just("ends"), st.integers(0, 9)),
        st.tuples(st.just("leaves"), st.none()),
        st.tuples(st.just("time"), st.integers(1, 900)),
    ),
    min_size=1,
    max_size=30,
)
SIGHTS = st.sampled_from(
    [quotas(a=16, b=8), nodes(8, 8, 4), nodes(4, 4, 4, 4), replace(quotas(a=8), nodes=nodes(8, 8).nodes, coming=())]
)
FAIR = st.booleans()


def happen(queue: Queue, number: int, what: str, how: object) -> None:
    match what, how:
        case "comes", ((gpus, count), name, place):
            queue.add(ticket(f"{place}/{number:03}", workers(gpus, count), priority_class=name))
        case "ends", which if queue.holders:
            queue.end(queue.holders[which % len(queue.holders)].key)
        case "leaves", _:
            queue.leave()
        case "time", passed_s:
            queue.now += passed_s


def lived(seen, fair, history, check=lambda queue: None) -> Queue:
    queue = Queue(seen, replace(RULES, fair_share=fair))
    for number, (what, how) in enumerate(history):
        happen(queue, number, what, how)
        queue.look()
        check(queue)
    return queue


def is_within_capacity(queue: Queue) -> None:
    for place, found in queue.seen.quotas.items():
        (most,) = found[0].hard.values()
        assert queue.held(place) * 1000 <= most
    assert all(left >= 0 for left in queue.free().values())
    total = sum(each.gpus for each in queue.holders)
    room = sum(each.allocatable["nvidia.com/gpu"] // 1000 for each in queue.seen.nodes or ())
    assert queue.seen.nodes is None or total <= room


@given(SIGHTS, FAIR, HAPPENINGS)
@settings(max_examples=400, deadline=None)
def test_never_more_is_held_than_there_is(seen, fair, history):
    lived(seen, fair, history, is_within_capacity)


@given(st.sampled_from([nodes(8, 8, 8), nodes(4, 4, 4, 4)]), FAIR, HAPPENINGS)
@settings(max_examples=200, deadline=None)
def test_where_a_pod_is_a_node_no_job_ever_has_only_some_of_its_pods(seen, fair, history):
    size = seen.nodes[0].allocatable["nvidia.com/gpu"] // 1000
    whole = [(what, ((size, how[0][1]), *how[1:]) if what == "comes" else how) for what, how in history]

    def are_whole(queue: Queue) -> None:
        for each in queue.holders:
            assert sum(map(len, each.bound.values())) == sum(pods.count for pods in each.pods)

    lived(seen, fair, whole, are_whole)


@given(SIGHTS, FAIR, HAPPENINGS, st.integers(0, 99).map(Random))
@settings(max_examples=200, deadline=None)
def test_the_answer_depends_on_nothing_but_what_a_status_keeps(seen, fair, history, random):
    queue = lived(seen, fair, history)
    tickets = list(queue.tickets.values())
    found = schedule(tickets, seen, queue.rules, queue.now)
    random.shuffle(tickets)
    assert schedule(tickets, seen, queue.rules, queue.now) == found


@given(SIGHTS, FAIR, HAPPENINGS)
@settings(max_examples=200, deadline=None)
def test_a_pass_on_what_the_last_one_has_decided_decides_nothing_new(seen, fair, history):
    queue = lived(seen, fair, history)
    held = {each.key: each.holding for each in queue.holders}
    queue.look()
    assert {each.key: each.holding for each in queue.holders} == held


@given(SIGHTS, HAPPENINGS)
@settings(max_examples=200, deadline=None)
def test_nobody_waits_who_comes_before_one_of_the_same_size_that_starts(seen, history):
    queue = Queue(seen)
    for number, (what, how) in enumerate(history):
        happen(queue, number, what, how)
        before = dict(queue.tickets)
        found = queue.look()
        started = [
            before[key]
            for key, decision in found.items()
            if decision.is_reserved and before[key].holding is Holding.NOTHING
        ]
        waits = [
            before[key]
            for key, decision in found.items()
            if decision.standing is Standing.QUEUED and before[key].holding is Holding.NOTHING
        ]
        for late in started:
            for early in waits:
                alike = early.pods == late.pods and early.namespace == late.namespace
                assert not (alike and rank(early, RULES) < rank(late, RULES))


@given(SIGHTS, FAIR, HAPPENINGS)
@settings(max_examples=200, deadline=None)
def test_when_jobs_end_and_none_come_everybody_gets_room(seen, fair, history):
    queue = lived(seen, fair, history)
    for _ in range(4 * len(history) + 4):
        found = queue.look()
        queue.leave()
        queue.look()
        queue.now += RULES.patience_s
        for each in [each for each in queue.holders if each.holding is Holding.RESERVED][:1]:
            queue.end(each.key)
    left = {key for key in queue.tickets if found[key].standing is not Standing.NEVER}
    assert not left


@given(st.sampled_from([quotas(a=16), nodes(8, 8)]), FAIR, st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_a_stream_of_small_jobs_does_not_starve_a_large_one(seen, fair, lifetime):
    """Each small job lives for some passes, and another one comes at each pass."""
    queue = Queue(seen, replace(RULES, fair_share=fair))
    deadline = queue.rules.patience_s / 60 + 2 * lifetime + 5
    for number in range(int(deadline)):
        queue.add(ticket(f"a/s{number:03}", workers(4)))
        if number == 5:
            queue.add(ticket("a/large", workers(8, 2)))
        queue.look()
        queue.now += 60
        for each in [each for each in queue.holders if (each.since or 0) <= queue.now - 60 * lifetime]:
            if each.key != "a/large":
                queue.end(each.key)
    assert "a/large" in queue.order


def test_nothing_is_decided_about_nobody():
    assert schedule((), quotas(), RULES, NOW) == {}
