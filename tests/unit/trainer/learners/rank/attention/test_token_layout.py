"""Tokens that repeat another sequence's beginning are computed once, and no others."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.batches.packing import MicroBatch, Packing, TrainingSequence, pack
from rljob_trainer.learners.rank.attention.layout import token_layout

parts = st.lists(st.integers(0, 2), min_size=1, max_size=5)
samples = st.lists(st.tuples(parts, parts), min_size=1, max_size=8)


def packed(pairs: list[tuple[list[int], list[int]]]) -> MicroBatch:
    sequences = [
        TrainingSequence((*prompt, *response), len(prompt), 1.0, (-1.0,) * len(response), 1.0)
        for prompt, response in pairs
    ]
    ((batch,),) = pack(sequences, Packing(1, 10_000))
    return batch


def prefixes(batch: MicroBatch) -> list[tuple[int, ...]]:
    """Return what each packed token's hidden state depends on: the tokens of its sequence up to itself."""
    bounds = batch.cu_seqlens_S1.tolist()
    return [
        tuple(batch.tokens_T[start : index + 1].tolist())
        for start, end in itertools.pairwise(bounds)
        for index in range(start, end)
    ]


@given(samples)
def test_packed_tokens_share_a_computed_one_exactly_if_their_prefixes_agree(
    pairs: list[tuple[list[int], list[int]]],
) -> None:
    batch = packed(pairs)
    nodes = token_layout(batch).node_T.tolist()
    known = prefixes(batch)
    assert len(set(nodes)) == len(set(known)) == len(set(zip(nodes, known, strict=True)))


@given(samples)
def test_computed_tokens_know_their_token_and_position(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = packed(pairs)
    layout = token_layout(batch)
    known = [prefixes(batch)[first] for first in layout.first_N]
    assert layout.tokens_N.tolist() == [prefix[-1] for prefix in known]
    assert layout.depth_N.tolist() == [len(prefix) - 1 for prefix in known]
    assert (layout.positions_R == layout.node_T[batch.positions_R]).all()


@given(samples)
def test_padded_rows_are_the_sequences(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = packed(pairs)
    layout = token_layout(batch)
    slots, slot_N = layout.padded()
    rows = slots.reshape(len(layout.lengths_S), -1)
    unpadded = np.concatenate([row[:length] for row, length in zip(rows, layout.lengths_S, strict=True)])
    assert (layout.tokens_N[unpadded] == batch.tokens_T).all()
    assert (slots[slot_N] == np.arange(len(layout.tokens_N))).all()


@given(samples, st.integers(1, 9))
def test_filled_up_tokens_divide_into_shares_and_are_a_sequence_behind_the_others(
    pairs: list[tuple[list[int], list[int]]], shares: int
) -> None:
    layout = token_layout(packed(pairs))
    filled = layout.filled(shares)
    number, packed_number = len(layout.tokens_N), len(layout.node_T)
    missing = len(filled.tokens_N) - number
    assert len(filled.tokens_N) % shares == 0 and missing < shares
    assert (filled is layout) is (missing == 0)
    assert filled.lengths_S.tolist() == [*layout.lengths_S.tolist(), *([missing] if missing else [])]
    for name, length in (("tokens_N", number), ("depth_N", number), ("first_N", number), ("node_T", packed_number)):
        assert (getattr(filled, name)[:length] == getattr(layout, name)).all()
    assert (filled.tokens_N[number:] == layout.tokens_N[0]).all()
    assert filled.positions_R is layout.positions_R
    assert filled.is_plain is layout.is_plain
    slots, slot_N = filled.padded()
    assert (slots[slot_N] == np.arange(len(filled.tokens_N))).all()
    assert len(set(slot_N.tolist())) == len(slot_N)


def test_sequences_without_a_common_beginning_are_all_computed() -> None:
    assert token_layout(packed([([1, 2], [0]), ([0, 2], [0])])).is_plain
