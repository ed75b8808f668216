"""What is slow is decided relative to the best pair."""

from itertools import chain, combinations

import pytest

from rljob_trainer.learners.link_report import SHARE, Link, LinkReport, finding, rounds, sent, slow, wants_all_pairs


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


def test_of_many_slow_links_the_slowest_are_named() -> None:
    links = tuple(link(0, 1 + place, rate) for place, rate in enumerate((8e9, 6e8, 5e8, 4e8, 3e8, 2e8, 1e8)))
    found = finding(LinkReport(tuple(f"pod-{rank}" for rank in range(8)), 1e-3, 2e9, links))
    assert found is not None
    assert found.evidence.count("and rank") == 4
    assert "rank 7 on pod-7: 0.1 GB/s; rank 0" in found.evidence
    assert "; and 2 more; all-reduce" in found.evidence
