"""The network between ranks is measured before the first step; a slow, dead or missing part of it is named."""

import pytest

from rljob_trainer.learners.link_report import LinkReport, slow
from support.trainer.learner_ranks import run_ranks
from support.trainer.link_scenarios import arrives, measured

LONG_S = 60.0


def test_two_ranks_measure_their_one_link() -> None:
    reports: list[LinkReport] = run_ranks(measured, 2, {}, LONG_S)
    assert reports[0] == LinkReport(
        ("pod-0", "pod-1"), reports[0].latency_s, reports[0].bandwidth, (reports[0].links[0],)
    )
    assert (slow(reports[0].links), reports[0].links == reports[1].links) == ((), True)


def test_a_slow_link_of_four_ranks_is_found_among_all_pairs() -> None:
    reports: list[LinkReport] = run_ranks(measured, 4, {(1, 2): 0.5}, LONG_S)
    worst, *_ = slow(reports[3].links)
    assert reports[3].named(worst) == "rank 1 on pod-1 and rank 2 on pod-2"
    assert {(link.first, link.second) for link in reports[3].links} == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}


def test_a_link_that_hangs_is_named_in_time() -> None:
    with pytest.raises(AssertionError, match="LinkError: rank 1 on pod-1 and rank 2 on pod-2 cannot exchange data"):
        run_ranks(measured, 4, {(1, 2): 60.0}, 10.0)


def test_a_rank_that_never_comes_is_named_with_those_that_are_there() -> None:
    there = "here: rank 0 on pod-0, rank 1 on pod-1"
    with pytest.raises(AssertionError, match=rf"LinkError: ranks \[2\] have not come .* within 10 s; {there}"):
        run_ranks(arrives, 3, 2, 10.0)


def test_ranks_that_all_come_know_where_each_is() -> None:
    assert run_ranks(arrives, 2, -1, LONG_S) == [("pod-0", "pod-1")] * 2
