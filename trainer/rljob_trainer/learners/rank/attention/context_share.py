"""Which computed tokens of a micro-batch each context-parallel rank has. NumPy only, as `layout.py`.

The tokens that a sequence does not share with one before it are cut into twice as many chunks as there are ranks. A
rank gets one chunk and its mirror image, so that all ranks have about as many pairs of query and key:

    12 tokens on 2 ranks:   0 0 0 1 1 1 1 1 1 0 0 0

Where the chunks differ in length, the rank with the fewest tokens so far gets the longest ones. At last the shares are
filled up to one length by copies of the first token, to which no other attends. So no rank is without a token, and
keys and values are gathered in equal parts.

Axes: N computed tokens, M of them on each rank, T packed tokens, R response tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rljob_trainer.learners.rank.attention.layout import Indices, TokenLayout


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring tokens of a sequence, by their positions in it; they attend to all from 0 to themselves."""

    sequence: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ContextShare:
    """The tokens of one rank, chunk after chunk."""

    chunks: tuple[Chunk, ...]
    tokens_M: Indices
    """numbers of its computed tokens"""
    place_N: Indices
    """where each computed token is when the shares of all ranks are laid end to end"""
    local_N: Indices
    """where it is in this share; -1: another rank has it"""


_FIRST = Chunk(0, 0, 1)
"""what fills up a share"""


def context_share(layout: TokenLayout, rank: int, ranks: int, shares: int = 1) -> ContextShare:
    """Return the share of one of several ranks, whose length is a multiple of `shares`."""
    chunks_by_rank = _chunks(layout, ranks)
    most = max(1, *(sum(chunk.length for chunk in chunks) for chunks in chunks_by_rank))
    most += -most % shares
    place_N = np.empty(len(layout.tokens_N), np.int64)
    for number, chunks in enumerate(chunks_by_rank):
        own = _tokens(layout, chunks)
        place_N[own] = number * most + np.arange(len(own))
        chunks += [_FIRST] * (most - len(own))
    local_N = place_N - rank * most
    return ContextShare(
        chunks=tuple(chunks_by_rank[rank]),
        tokens_M=_tokens(layout, chunks_by_rank[rank]),
        place_N=place_N,
        local_N=np.where((local_N >= 0) & (local_N < most), local_N, -1),
    )


def path(layout: TokenLayout, sequence: int, stop: int) -> Indices:
    """Return the computed tokens of a sequence from its first one on."""
    start = int(layout.lengths_S[:sequence].sum())
    return layout.node_T[start : start + stop]


def _tokens(layout: TokenLayout, chunks: list[Chunk]) -> Indices:
    parts = [path(layout, chunk.sequence, chunk.stop)[chunk.start :] for chunk in chunks]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _chunks(layout: TokenLayout, ranks: int) -> list[list[Chunk]]:
    """Return the chunks of each rank."""
    shares: list[list[Chunk]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for sequence, start, stop in _new(layout):
        edges = [start + (stop - start) * number // (2 * ranks) for number in range(2 * ranks + 1)]
        cut = [Chunk(sequence, *edges[number : number + 2]) for number in range(2 * ranks)]
        pairs = [[each for each in (cut[number], cut[-1 - number]) if each.length] for number in range(ranks)]
        pairs.sort(key=lambda pair: -sum(chunk.length for chunk in pair))
        for pair, rank in zip(pairs, sorted(range(ranks), key=loads.__getitem__), strict=True):
            shares[rank] += pair
            loads[rank] += sum(chunk.length for chunk in pair)
    return shares


def _new(layout: TokenLayout) -> Iterator[tuple[int, int, int]]:
    """Yield each sequence with the positions from the first that no sequence before it has to its end."""
    is_first_T = layout.first_N[layout.node_T] == np.arange(len(layout.node_T))
    starts_S = np.cumsum(layout.lengths_S) - layout.lengths_S
    new_S = np.add.reduceat(is_first_T.astype(np.int64), starts_S)
    for sequence, (length, new) in enumerate(zip(layout.lengths_S.tolist(), new_S.tolist(), strict=True)):
        yield sequence, length - new, length
