"""Which packed tokens are really computed, and where. NumPy only; the learner calls it once for each micro-batch.

Under causal attention a token's hidden state depends on nothing but the tokens before it. So two sequences of a
micro-batch that begin alike (the samples of one prompt) share the hidden states of their common beginning, and
everything outside of attention is computed once for it. This is exact, not an approximation.

Axes: T packed tokens, N computed ones (N <= T), S sequences, L longest sequence, R response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rljob_trainer.batches.packing import MicroBatch

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenLayout:
    """The tokens of a micro-batch without those that repeat another sequence's beginning."""

    tokens_N: Indices
    depth_N: Indices
    """position of each in its sequence"""
    node_T: Indices
    """which computed token stands for each packed one"""
    first_N: Indices
    """the first packed token that each computed one stands for"""
    positions_R: Indices
    """the micro-batch's `positions_R`, as computed tokens"""
    lengths_S: Indices

    @property
    def is_plain(self) -> bool:
        """Whether no token repeats, so that computed and packed tokens are the same."""
        return len(self.tokens_N) == len(self.node_T)

    def filled(self, shares: int) -> "TokenLayout":
        """Return a layout whose computed tokens divide into equal shares: with a sequence of copies of the first token
        behind the others, to which no other attends, if they do not."""
        number, missing = len(self.tokens_N), -len(self.tokens_N) % shares
        if not missing:
            return self
        more = np.arange(missing)
        return TokenLayout(
            tokens_N=np.append(self.tokens_N, np.repeat(self.tokens_N[:1], missing)),
            depth_N=np.append(self.depth_N, more),
            node_T=np.append(self.node_T, number + more),
            first_N=np.append(self.first_N, len(self.node_T) + more),
            positions_R=self.positions_R,
            lengths_S=np.append(self.lengths_S, missing),
        )

    def padded(self) -> tuple[Indices, Indices]:
        """Return the tokens as S rows of L, as (computed token of each slot [S * L], slot of each computed token [N]).

        Rows are padded on the right with token 0: causal attention never looks there.
        """
        longest = int(self.lengths_S.max())
        row_T = np.repeat(np.arange(len(self.lengths_S)), self.lengths_S)
        slot_T = row_T * longest + self.depth_N[self.node_T]
        slots = np.zeros(len(self.lengths_S) * longest, np.int64)
        slots[slot_T] = self.node_T
        return slots, slot_T[self.first_N]


def share_length(length: int, ranks: int) -> int:
    """Return how many of `length` tokens each tensor rank routes; the last ones may have fewer, or none."""
    return -(-length // ranks)


def token_layout(batch: MicroBatch) -> TokenLayout:
    """Return the layout of a micro-batch: its sequences as a tree of tokens, numbered in order of appearance."""
    lengths_S = np.diff(batch.cu_seqlens_S1).astype(np.int64)
    nodes_T, first_N = _nodes(np.split(batch.tokens_T, batch.cu_seqlens_S1[1:-1]))
    depth_T = np.arange(len(nodes_T)) - np.repeat(batch.cu_seqlens_S1[:-1], lengths_S)
    return TokenLayout(
        tokens_N=batch.tokens_T[first_N],
        depth_N=depth_T[first_N].astype(np.int64),
        node_T=nodes_T,
        first_N=first_N.astype(np.int64),
        positions_R=nodes_T[batch.positions_R],
        lengths_S=lengths_S,
    )


def _nodes(sequences: Sequence[Indices]) -> tuple[Indices, Indices]:
    """Return for each token of the sequences its place in their tree, and the first token of each place.

    Places are numbered in order of appearance. Sorted, a sequence shares most with the one before it.
    """
    keys = [tokens.astype(">i8").tobytes() for tokens in sequences]  # their order is that of the tokens
    ids: list[Indices] = [np.empty(0, np.int64)] * len(sequences)
    before, count = -1, 0
    for index in sorted(range(len(sequences)), key=keys.__getitem__):
        tokens = sequences[index]
        shared = 0 if before < 0 else _shared(tokens, sequences[before])
        ids[index] = np.arange(count - shared, count - shared + len(tokens))
        ids[index][:shared] = ids[before][:shared] if shared else 0
        count += len(tokens) - shared
        before = index
    ids_T = np.concatenate(ids)
    _, first_U, unique_T = np.unique(ids_T, return_index=True, return_inverse=True)
    place_U = np.empty_like(first_U)
    place_U[np.argsort(first_U)] = np.arange(len(first_U))
    return place_U[unique_T].astype(np.int64), np.sort(first_U).astype(np.int64)


def _shared(tokens: Indices, others: Indices) -> int:
    """Return how many tokens both begin with."""
    shortest = min(len(tokens), len(others))
    differs = tokens[:shortest] != others[:shortest]
    return int(differs.argmax()) if differs.any() else shortest
