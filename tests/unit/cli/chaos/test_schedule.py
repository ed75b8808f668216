"""The plan of faults: a function of the seed."""

from itertools import pairwise

import pytest

from rljob_cli.chaos.faults import Fault
from rljob_cli.chaos.schedule import LONGEST, MOST, SHORTEST, TooManyFaultsError, schedule

ALL = tuple(Fault)


def test_the_same_seed_gives_the_same_plan():
    assert schedule(7, ALL, 20, 600) == schedule(7, ALL, 20, 600)
    assert schedule(7, ALL, 20, 600) != schedule(8, ALL, 20, 600)


def test_a_longer_plan_begins_as_a_shorter_one():
    short = schedule(7, ALL, 20, 300)
    assert schedule(7, ALL, 20, 600)[: len(short)] == short


@pytest.mark.parametrize("seed", range(20))
def test_faults_come_at_random_times_about_as_often_as_wanted(seed: int):
    planned = schedule(seed, ALL, 20, 4000)
    gaps_s = [after.at_s - before.at_s for before, after in pairwise(planned)]
    assert SHORTEST * 20 - 0.2 <= min(gaps_s) < max(gaps_s) <= LONGEST * 20 + 0.2
    assert len(set(gaps_s)) > 50
    assert 180 <= len(planned) <= 220
    assert planned[-1].at_s < 4000


@pytest.mark.parametrize("seed", range(20))
def test_each_fault_comes_once_before_any_comes_again(seed: int):
    kinds = [planned.fault for planned in schedule(seed, ALL, 10, 400)]
    assert set(kinds[: len(ALL)]) == set(kinds[len(ALL) : 2 * len(ALL)]) == set(ALL)


def test_targets_are_drawn_from_all_of_them():
    draws = [planned.draw for planned in schedule(0, ALL, 1, 500)]
    assert {int(draw * 4) for draw in draws} == {0, 1, 2, 3}


def test_a_plan_that_is_shorter_than_a_gap_is_empty():
    assert schedule(0, ALL, 600, 60) == ()


def test_a_plan_has_a_bound_and_names_the_nearest_gap():
    with pytest.raises(TooManyFaultsError, match=f"more than {MOST} faults; nearest valid: --every 9s"):
        schedule(0, ALL, 1, 86_400)
    schedule(0, ALL, 9, 86_400)
