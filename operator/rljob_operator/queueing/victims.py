"""Which jobs to preempt: hardly more than the fewest that make room, of the lowest priorities. Pure.

Sets of jobs are tried, so no model of quotas and nodes is needed here: `suffices` says whether a set makes room.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from rljob_operator.queueing.ticket import Ticket

Suffices = Callable[[Sequence[Ticket]], bool]
"""whether there is room when these jobs have left; never worse for more of them"""
MOST_SETS = 2_000
"""that are tried to find fewer"""


def fewest(candidates: Sequence[Ticket], orders: Sequence[Sequence[Ticket]], suffices: Suffices) -> tuple[Ticket, ...]:
    """Return jobs that make room when they leave; none: all together do not.

    `candidates` are sorted, those first that should leave rather than others; `orders` are other orders of the same.
    One job more than the fewest may be preempted, if that spares others of higher priorities.
    """
    if not candidates or not suffices(candidates):
        return ()
    preferred = _spared(candidates, suffices)
    best = min((_spared(order, suffices) for order in orders), key=len, default=preferred)
    best = min(preferred, best, key=len)
    smaller = _smaller(candidates, len(best) - 1, suffices)
    least = len(smaller) if smaller is not None else max(1, len(best) - 1)
    return preferred if len(preferred) <= least + 1 else smaller or best


def _spared(order: Sequence[Ticket], suffices: Suffices) -> tuple[Ticket, ...]:
    """Return the first jobs of an order that are enough, without those of them that may stay."""
    count = bisect_left(range(1, len(order) + 1), True, key=lambda number: suffices(order[:number]))
    chosen = list(order[: count + 1])
    for each in reversed(chosen[:-1]):
        others = [other for other in chosen if other is not each]
        if suffices(others):
            chosen = others
    return tuple(chosen)


def _smaller(candidates: Sequence[Ticket], below: int, suffices: Suffices) -> tuple[Ticket, ...] | None:
    """Return a set of fewer than `below` jobs, smallest sets first; None: there is none, or not among those tried."""
    for _, chosen in zip(range(MOST_SETS), _sets(candidates, below), strict=False):
        if suffices(chosen):
            return chosen
    return None


def _sets(candidates: Sequence[Ticket], below: int) -> Iterator[tuple[Ticket, ...]]:
    for size in range(1, below):
        yield from combinations(candidates, size)
