"""Whom to send away: hardly more than the fewest, and nobody who is not in the way."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_operator.capacity.snapshot import Snapshot
from rljob_operator.queueing.schedule import schedule
from rljob_operator.world.queue_decision import Standing
from support.operator.queue_world import NOW, RULES, holder, node, quotas, ticket, workers

SIZES = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from(["low", None]), st.integers(0, 2)), min_size=1, max_size=9
)


def sent(found) -> set[str]:
    return {key for key, decision in found.items() if decision.standing is Standing.PREEMPTED}


@pytest.mark.parametrize("others", [10, 40, 200])
def test_jobs_under_other_quotas_are_never_sent_away_for_this_one(others: int):
    seen = quotas(a=8, **{f"t{i}": 8 for i in range(others)})
    mine = holder("a/old", workers(8), at=0, priority_class="low")
    held = [holder(f"t{i}/job", workers(8), at=10 + i, priority_class="low") for i in range(others)]
    high = ticket("a/urgent", workers(8), at=1000, priority_class="high")
    assert sent(schedule([mine, *held, high], seen, RULES, NOW + 1001)) == {"a/old"}


def test_jobs_on_other_nodes_are_never_sent_away_for_this_one():
    seen = Snapshot({}, {}, (*(node(f"x{i}", 8, pool="x") for i in range(30)), node("y", 8, pool="y")), None)
    held = [
        holder(f"t/x{i}", workers(8), at=i, bound={"workers": (f"x{i}",)}, priority_class="low", has_started=True)
        for i in range(30)
    ]
    mine = holder("t/y", workers(8), at=-1, bound={"workers": ("y",)}, has_started=True)
    high = ticket("a/urgent", workers(8, pool="y"), at=50, priority_class="high")
    assert sent(schedule([*held, mine, high], seen, RULES, NOW + 60)) == {"t/y"}


def test_one_large_job_goes_rather_than_eight_small_ones():
    seen = Snapshot({}, {}, (node("n0", 8), node("n1", 8)), None)
    small = [
        holder(f"t/s{i}", workers(1), at=i, bound={"workers": ("n0",)}, priority_class="low", has_started=True)
        for i in range(8)
    ]
    large = holder("t/large", workers(8), at=-9, bound={"workers": ("n1",)}, priority_class="low", has_started=True)
    high = ticket("a/urgent", workers(8), at=50, priority_class="high")
    assert sent(schedule([*small, large, high], seen, RULES, NOW + 60)) == {"t/large"}


def test_a_lower_priority_goes_rather_than_a_higher_one_if_that_is_hardly_more():
    low = [holder(f"ml/l{i}", workers(4), at=i, priority_class="low") for i in range(2)]
    usual = holder("ml/usual", workers(8), at=9)
    high = ticket("urgent", workers(8), at=50, priority_class="high")
    assert sent(schedule([*low, usual, high], quotas(ml=16), RULES, NOW + 60)) == {"ml/l0", "ml/l1"}


def on_nodes(jobs) -> tuple[Snapshot, list]:
    """Return jobs on nodes of eight slots, each where it was drawn to if there is room, or else nowhere."""
    left, found = {f"n{i}": 8 for i in range(3)}, []
    for number, (gpus, name, place) in enumerate(jobs):
        on = next((n for n in (f"n{place}", *left) if left[n] >= gpus), None)
        if on is not None:
            left[on] -= gpus
            more = {"bound": {"workers": (on,)}, "priority_class": name, "has_started": True}
            found.append(holder(f"ml/h{number}", workers(gpus), at=number, **more))
    return Snapshot({}, {}, tuple(node(name, 8) for name in left), None), found


def fits_without(leaving, held, seen, urgent) -> bool:
    rest = [each for each in held if each not in leaving]
    return schedule([*rest, urgent], seen, RULES, NOW + 60)[urgent.key].text.startswith(
        "it holds room for"
    ) and not sent(schedule([*rest, urgent], seen, RULES, NOW + 60))


@given(SIZES, st.sampled_from([(4, 1), (8, 1), (8, 2), (4, 3)]))
@settings(max_examples=60, deadline=None)
def test_at_most_one_more_than_the_fewest_is_sent_away(jobs, wanted):
    seen, held = on_nodes(jobs)
    seen = Snapshot({}, {}, seen.nodes, ())
    urgent = ticket("urgent", workers(*wanted), at=50, priority_class="high")
    found = sent(schedule([*held, urgent], seen, RULES, NOW + 60))
    sizes = range(len(held) + 1)
    least = next(
        (n for n in sizes for chosen in combinations(held, n) if fits_without(chosen, held, seen, urgent)), None
    )
    assert least is None or len(found) <= least + 1
    assert least is None or (least == 0) == (not found)
