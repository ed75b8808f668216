"""Which sequences each rank computes, in which micro-batch. Pure: sequences are numbers, from 0.

    sequences ─► pieces (neighbours with one prompt) ─► micro-batches of ranks

By tokens: each piece, longest first, goes to the rank with the fewest tokens, and there into the first micro-batch with
room. By work: a token of a long sequence takes more, because it attends to more tokens; where ranks wait for each other
the longest of them counts.

    ranks that meet in each micro-batch (experts that data-parallel ranks share out):    sum over k of max over ranks
    ranks that meet at the end of the step:                                              max over ranks of sum over k

Of several layouts the one with the least of it is taken, and that by tokens where none is better. None has more tokens
in a micro-batch than the limit. Where ranks meet in each micro-batch, none has more of them than that by tokens; where
they meet at the end, a rank with many short sequences may have some more.
"""

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PIECES_PER_RANK = 4
"""pieces are cut so small that every rank gets at least this number, for balance"""

Numbers = list[int]
"""of the sequences of a piece, or of a micro-batch; empty: a micro-batch that only fills up"""
Share = list[Numbers]
"""the micro-batches of a rank"""


@dataclass(frozen=True, slots=True)
class Meeting:
    """How ranks work beside each other."""

    ranks: int
    max_tokens: int
    """of a micro-batch; a longer sequence is one by itself"""
    in_step: bool
    """whether all ranks need equally many micro-batches, because they meet in each"""
    multiple: int
    """what the number of a rank's micro-batches is a multiple of"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sequences, by their numbers."""

    tokens: Sequence[int]
    prompts: Sequence[int]
    """tokens of the prompt that each has in common with the one before it; 0: another prompt, or the first"""
    work: Sequence[int] = ()
    """of each by itself [FLOPs]; empty: that is not known"""
    repeated: Sequence[int] = ()
    """what it takes less behind the one before it: their prompt is computed once [FLOPs]"""

    def tokens_of(self, numbers: Sequence[int]) -> int:
        """Return the tokens of a micro-batch."""
        return sum(self.tokens[number] for number in numbers)

    def work_of(self, numbers: Sequence[int]) -> int:
        """Return the work of a micro-batch [FLOPs]."""
        if not numbers:
            return min(self.work)
        saved = sum(self.repeated[after] for before, after in itertools.pairwise(numbers) if after == before + 1)
        return sum(self.work[number] for number in numbers) - saved


def shared_out(sizes: Sizes, meeting: Meeting) -> list[Share]:
    """Return the micro-batches of each rank: by work where it is known and that is better, else by tokens."""
    by_tokens = _by_tokens(sizes, meeting)
    if not sizes.work or meeting.ranks == 1:
        return by_tokens
    others = _in_rows(sizes, meeting, max(map(len, by_tokens))) if meeting.in_step else [_by_work(sizes, meeting)]
    return min([by_tokens, *others], key=lambda shares: span(sizes, shares, meeting.in_step))


def span(sizes: Sizes, shares: Sequence[Share], in_step: bool) -> int:
    """Return the work on the longest way through a step: no rank can end it earlier [FLOPs]."""
    work = [[sizes.work_of(numbers) for numbers in share] for share in shares]
    return sum(map(max, zip(*work, strict=True))) if in_step else max(map(sum, work))


def _by_tokens(sizes: Sizes, meeting: Meeting) -> list[Share]:
    pieces = sorted(_pieces(sizes, meeting), key=lambda piece: -sizes.tokens_of(piece))
    tokens = [sizes.tokens_of(piece) for piece in pieces]
    shares = [_bins(sizes, share, meeting.max_tokens) for share in _balanced(pieces, tokens, meeting.ranks)]
    return _filled_up(shares, meeting)


def _by_work(sizes: Sizes, meeting: Meeting) -> list[Share]:
    pieces = sorted(_pieces(sizes, meeting), key=lambda piece: -sizes.work_of(piece))
    balanced = _balanced(pieces, [sizes.work_of(piece) for piece in pieces], meeting.ranks)
    longest_first = [sorted(share, key=lambda piece: -sizes.tokens_of(piece)) for share in balanced]
    return _filled_up([_bins(sizes, share, meeting.max_tokens) for share in longest_first], meeting)


def _in_rows(sizes: Sizes, meeting: Meeting, most: int) -> Iterator[list[Share]]:
    """Yield layouts whose micro-batches are made for all ranks together, and meet those that take as long."""
    pieces = sorted(_pieces(sizes, meeting), key=lambda piece: -sizes.work_of(piece))
    bins = _full_bins(sizes, sorted(pieces, key=lambda piece: -sizes.tokens_of(piece)), meeting.max_tokens)
    fewest = _whole(-(-len(bins) // meeting.ranks), meeting.multiple)
    if fewest <= most:
        yield _rows(sizes, bins, meeting.ranks, fewest)
    for number in range(fewest, most + 1, meeting.multiple):
        if found := _even_bins(sizes, pieces, number * meeting.ranks, meeting.max_tokens):
            yield _rows(sizes, found, meeting.ranks, number)
            return


def _rows(sizes: Sizes, bins: list[Numbers], ranks: int, number: int) -> list[Share]:
    """Give the micro-batches with the most work to the ranks first, so that those that meet are neighbours in it."""
    bins = sorted(_as_many(ranks * number, list(filter(None, bins))), key=lambda numbers: -sizes.work_of(numbers))
    return [bins[rank::ranks] for rank in range(ranks)]


def _full_bins(sizes: Sizes, pieces: list[Numbers], max_tokens: int) -> list[Numbers]:
    """Best fit of pieces that come longest first: quick for many micro-batches, and with as few as the first fit."""
    bins: list[Numbers] = []
    rooms: list[tuple[int, int]] = []
    for piece in pieces:
        tokens = sizes.tokens_of(piece)
        index = bisect_left(rooms, (tokens, 0))
        room, place = rooms.pop(index) if index < len(rooms) else (max_tokens, len(bins))
        if place == len(bins):
            bins.append([])
        bins[place] += piece
        insort(rooms, (room - tokens, place))
    return bins


def _even_bins(sizes: Sizes, pieces: list[Numbers], count: int, max_tokens: int) -> list[Numbers]:
    """Give each piece to the micro-batch with the least work that has room for it; nothing if a piece finds none."""
    bins: list[Numbers] = [[] for _ in range(count)]
    rooms = [max_tokens] * count
    loads = [(0, place) for place in range(count)]
    for piece in pieces:
        tokens, passed = sizes.tokens_of(piece), []
        while loads and bins[loads[0][1]] and rooms[loads[0][1]] < tokens:
            passed.append(heapq.heappop(loads))
        if not loads:
            return []
        load, place = heapq.heappop(loads)
        bins[place] += piece
        rooms[place] -= tokens
        for each in (*passed, (load + sizes.work_of(piece), place)):
            heapq.heappush(loads, each)
    return bins


def _whole(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _filled_up(shares: list[Share], meeting: Meeting) -> list[Share]:
    """Return the micro-batches of the ranks in the numbers that they need."""
    most = max(map(len, shares)) if meeting.in_step else 0
    return [_as_many(_whole(max(most, len(share), 1), meeting.multiple), share) for share in shares]


def _as_many(count: int, bins: list[Numbers]) -> list[Numbers]:
    """Return the micro-batches as `count` of them: the largest are divided, then others fill up."""
    bins = list(bins)
    while len(bins) < count and (largest := max(bins, key=len, default=[])) and len(largest) > 1:
        place, middle = bins.index(largest), len(largest) // 2
        bins[place : place + 1] = [largest[:middle], largest[middle:]]
    return bins + [[] for _ in range(count - len(bins))]


def _pieces(sizes: Sizes, meeting: Meeting) -> list[Numbers]:
    """Cut runs of sequences with equal prompts where they would exceed the limit or make ranks uneven."""
    total = sum(sizes.tokens)
    limit = meeting.max_tokens
    limit = limit if meeting.ranks == 1 else min(limit, total // (meeting.ranks * PIECES_PER_RANK))
    pieces: list[Numbers] = []
    room = 0
    for number, tokens in enumerate(sizes.tokens):
        if not sizes.prompts[number] or tokens > room:
            pieces.append([])
            room = limit
        pieces[-1].append(number)
        room -= tokens
    return pieces


def _balanced(pieces: list[Numbers], weights: list[int], ranks: int) -> list[list[Numbers]]:
    """Give each piece, heaviest first, to the rank with the least so far; ties go to the lower rank."""
    shares: list[list[Numbers]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for piece, weight in zip(pieces, weights, strict=True):
        load, rank = heapq.heappop(loads)
        shares[rank].append(piece)
        heapq.heappush(loads, (load + weight, rank))
    return shares


def _bins(sizes: Sizes, pieces: list[Numbers], max_tokens: int) -> list[Numbers]:
    """First fit of pieces that come longest first; a piece above the limit is a single sequence and goes alone."""
    bins: list[Numbers] = []
    rooms: list[int] = []
    for piece in pieces:
        tokens = sizes.tokens_of(piece)
        index = next((i for i, room in enumerate(rooms) if tokens <= room), None)
        if index is None:
            index = len(bins)
            bins.append([])
            rooms.append(max_tokens)
        bins[index] += piece
        rooms[index] -= tokens
    return bins
