"""Context-parallel ranks split the computed tokens of a micro-batch evenly, and attend to what one rank would."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.batches.packing import MicroBatch, Packing, TrainingSequence, pack
from rljob_trainer.learners.rank.attention import flash
from rljob_trainer.learners.rank.attention.attention import PaddedKernel
from rljob_trainer.learners.rank.attention.context import PaddedShare, VarlenShare
from rljob_trainer.learners.rank.attention.context_share import Chunk, ContextShare, context_share, path
from rljob_trainer.learners.rank.attention.flash import PLAIN, Sight
from rljob_trainer.learners.rank.attention.layout import TokenLayout, token_layout

HEADS, GROUPS, SIZE = 4, 2, 8
parts = st.lists(st.integers(0, 2), min_size=1, max_size=9)
samples = st.lists(st.tuples(parts, parts), min_size=1, max_size=6)
numbers = st.integers(2, 5)


def packed(pairs: list[tuple[list[int], list[int]]]) -> MicroBatch:
    sequences = [
        TrainingSequence((*prompt, *response), len(prompt), 1.0, (-1.0,) * len(response), 1.0)
        for prompt, response in pairs
    ]
    ((batch,),) = pack(sequences, Packing(1, 10_000))
    return batch


def shares(layout: TokenLayout, ranks: int) -> list[ContextShare]:
    return [context_share(layout, rank, ranks) for rank in range(ranks)]


@given(samples, numbers)
def test_every_computed_token_is_on_one_rank_and_all_ranks_know_where(
    pairs: list[tuple[list[int], list[int]]], ranks: int
) -> None:
    layout = token_layout(packed(pairs))
    found = shares(layout, ranks)
    end_to_end = np.concatenate([share.tokens_M for share in found])
    tokens = np.arange(len(layout.tokens_N))
    for share in found:
        assert (end_to_end[share.place_N] == tokens).all()
        own = share.local_N >= 0
        assert (share.tokens_M[share.local_N[own]] == tokens[own]).all()
        assert sum(chunk.length for chunk in share.chunks) == len(share.tokens_M)
    assert sum((share.local_N >= 0).astype(int) for share in found).tolist() == [1] * len(tokens)


@given(samples, numbers)
def test_ranks_have_equally_many_tokens_and_few_that_fill_up(
    pairs: list[tuple[list[int], list[int]]], ranks: int
) -> None:
    layout = token_layout(packed(pairs))
    found = shares(layout, ranks)
    (length,) = {len(share.tokens_M) for share in found}
    fewest = min((share.local_N >= 0).sum() for share in found)
    assert fewest >= length - 2 or length == 1
    for share in found:
        filling = share.tokens_M[(share.local_N >= 0).sum() :]
        assert (filling == 0).all()


@given(samples, numbers, numbers)
def test_tokens_of_a_rank_divide_into_the_shares_of_tensor_ranks(
    pairs: list[tuple[list[int], list[int]]], ranks: int, parts: int
) -> None:
    layout = token_layout(packed(pairs))
    least = len(context_share(layout, 0, ranks).tokens_M)
    found = [context_share(layout, rank, ranks, parts) for rank in range(ranks)]
    (length,) = {len(share.tokens_M) for share in found}
    assert length % parts == 0 and length - least < parts
    end_to_end = np.concatenate([share.tokens_M for share in found])
    for share in found:
        assert (end_to_end[share.place_N] == np.arange(len(layout.tokens_N))).all()
        assert (share.tokens_M[(share.local_N >= 0).sum() :] == 0).all()


def test_a_long_sequence_is_cut_into_chunks_and_their_mirror_images() -> None:
    layout = token_layout(packed([([0] * 10, [1] * 6)]))
    assert [share.chunks for share in shares(layout, 2)] == [
        (Chunk(0, 0, 4), Chunk(0, 12, 16)),
        (Chunk(0, 4, 8), Chunk(0, 8, 12)),
    ]


def test_long_sequences_have_as_many_pairs_of_query_and_key_on_every_rank() -> None:
    layout = token_layout(packed([([0] * 300, [1] * 213), ([2] * 77, [3] * 1000)]))
    pairs = [sum(sum(range(chunk.start + 1, chunk.stop + 1)) for chunk in s.chunks) for s in shares(layout, 4)]
    assert max(pairs) < 1.02 * min(pairs)


def test_many_short_sequences_do_not_all_go_to_one_rank() -> None:
    layout = token_layout(packed([([number], [number]) for number in range(50)]))
    assert [(share.local_N >= 0).sum() for share in shares(layout, 4)] == [25] * 4


class Everything:
    """Hands each rank the keys and values of all."""

    def __init__(self, found: list[ContextShare]) -> None:
        self._tokens = torch.from_numpy(np.concatenate([share.tokens_M for share in found]))
        self.k = self.v = torch.empty(0)

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k[self._tokens], self.v[self._tokens]


def last_queries(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
) -> torch.Tensor:
    """Do what torch's `varlen_attn` does on GPUs: the last query of a run sees its last key."""
    before, after = window_size
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32 and after == 0
    outputs, widths = [], []
    for (start, stop), (first, last) in zip(
        itertools.pairwise(cu_seq_q.tolist()), itertools.pairwise(cu_seq_k.tolist()), strict=True
    ):
        q, k, v = query[start:stop], key[first:last], value[first:last]
        widths.append((len(q), len(k)))
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(ahead := len(k) - len(q))
        mask = mask if before == -1 else mask.triu(ahead - before)
        k, v = (x.repeat_interleave(HEADS // GROUPS, 1).transpose(0, 1) for x in (k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), k, v, mask, scale=scale)
        outputs.append(attended.transpose(0, 1))
    assert (max_q, max_k) == tuple(map(max, zip(*widths, strict=True)))
    return torch.cat(outputs)


@pytest.mark.parametrize("kernel", [PaddedShare, VarlenShare])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sight", [PLAIN, Sight(1), Sight(3), Sight(8, 0.25)], ids=str)
def test_all_ranks_together_attend_as_one_rank_does(
    kernel: type[PaddedShare] | type[VarlenShare], ranks: int, sight: Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "varlen_attn", last_queries)
    monkeypatch.setattr(flash, "sees_windows", lambda attend, device: True)  # see test_flash.py
    pairs = [([1, 2, 3], [4, 5]), ([1, 2], [9]), ([1, 2, 3], [7] * 20), ([8], [8]), ([6] * 13, [5] * 4)]
    layout = token_layout(packed(pairs))
    assert not layout.is_plain
    torch.manual_seed(0)
    q, k, v = (torch.randn(len(layout.tokens_N), heads, SIZE, requires_grad=True) for heads in (HEADS, GROUPS, GROUPS))
    whole = PaddedKernel(layout, torch.device("cpu"))(q, k, v, sight)
    found = shares(layout, ranks)
    gather = Everything(found)
    gather.k, gather.v = k, v
    outputs = []
    for share in found:
        own = torch.from_numpy(share.tokens_M)
        out = kernel(layout, share, gather, torch.device("cpu"))(q[own], k[own], v[own], sight)
        assert out.isfinite().all()
        outputs.append(out)
    together = torch.cat(outputs)[torch.from_numpy(found[0].place_N)]
    torch.testing.assert_close(together, whole, rtol=0, atol=1e-6)
    upstream = torch.randn_like(whole)
    torch.testing.assert_close(
        torch.autograd.grad(together, (q, k, v), upstream),
        torch.autograd.grad(whole, (q, k, v), upstream),
        rtol=0,
        atol=2e-6,
    )


def test_the_path_of_a_sequence_has_the_beginning_that_it_shares() -> None:
    layout = token_layout(packed([([1, 2, 3], [4]), ([1, 2, 3], [5])]))
    assert path(layout, 1, 4).tolist() == [0, 1, 2, 4]
