"""What is slow is decided relative to the best pair."""

from itertools import chain, combinations

import pytest

from rljob_trainer.learners.link_report import SHARE, Link, LinkReport, rounds, sent, slow, wants_all_pairs


def link(first: int, second: int, bandwidth: float) -> Link:
    return Link(first, second, 1e-5, bandwidth)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16])
def test_every_pair_meets_once_and_no_rank_twice_in_a_round(ranks: int) -> None:
    plan = rounds(ranks)
    assert sorted(chain(*plan)) == list(combinations(range(ranks), 2))
    assert all(len(set(chain(*pairs))) == 2 * len(pairs) for pairs in plan)
    assert len(plan) == ranks - 1 + ranks % 2


def test_links_far_below_the_best_are_slow_and_the_slowest_comes_first() -> None:
    links = [link(0, 1, 100.0), link(0, 2, 100.0 * SHARE), link(1, 2, 100.0 * SHARE - 1), link(0, 3, 3.0)]
    assert [each.bandwidth for each in slow(links)] == [3.0, 100.0 * SHARE - 1]
    assert slow(links[:1]) == slow([]) == ()


def test_all_pairs_are_measured_if_the_group_or_one_of_the_first_pairs_is_slow() -> None:
    even = [link(0, 1, 100.0), link(2, 3, 90.0)]
    assert not wants_all_pairs(100.0 * SHARE, even)
    assert wants_all_pairs(100.0 * SHARE - 1, even)
    assert wants_all_pairs(100.0, [*even, link(0, 2, 1.0)])


def test_a_ring_sends_twice_all_but_a_rank_s_own_part() -> None:
    assert (sent(2, 100, 2.0), sent(4, 100, 1.0)) == (50.0, 150.0)


def test_a_report_names_figures_and_places() -> None:
    report = LinkReport(("pod-a", "pod-b"), 0.0012, 2.5e9, (link(0, 1, 5e9),))
    assert str(report) == "all-reduce of 2 ranks: 1.2 ms, 2.5 GB/s; best of 1 pairs 5 GB/s"
    assert report.named(report.links[0]) == "rank 0 on pod-a and rank 1 on pod-b"
