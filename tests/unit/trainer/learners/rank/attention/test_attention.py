"""Packed attention, against attention of one sequence at a time."""

import itertools
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rljob_trainer.batches.packing import Packing, TrainingSequence, pack
from rljob_trainer.learners.rank.attention import flash
from rljob_trainer.learners.rank.attention.attention import KERNELS, PackedAttention, PackedTokens, PaddedKernel
from rljob_trainer.learners.rank.attention.flash import PLAIN, Sight
from rljob_trainer.learners.rank.attention.layout import token_layout

HEADS, GROUPS, SIZE = 4, 2, 8


SIGHTS = [PLAIN, Sight(1), Sight(3), Sight(5), Sight(6), Sight(7), Sight(2, 0.25), Sight(None, 0.25)]


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
def test_each_sequence_attends_causally_to_itself_alone_and_gradients_agree(sight: Sight) -> None:
    sequences = [
        TrainingSequence(tokens, 1, 1.0, (-1.0,) * (len(tokens) - 1), 1.0)
        for tokens in ((1, 2, 3, 4, 5), (1, 2, 9), (1, 2, 3, 7, 7, 7, 7), (8, 8))
    ]
    ((batch,),) = pack(sequences, Packing(1, 10_000))
    layout = token_layout(batch)
    torch.manual_seed(0)
    q, k, v = (torch.randn(len(layout.tokens_N), heads, SIZE, requires_grad=True) for heads in (HEADS, GROUPS, GROUPS))
    upstream = torch.randn(len(layout.tokens_N), HEADS, SIZE)
    ours = PaddedKernel(layout, torch.device("cpu"))(q, k, v, sight)
    naive = naive_attention(q, k, v, layout.node_T, batch.cu_seqlens_S1, sight)[torch.from_numpy(layout.first_N)]
    torch.testing.assert_close(ours, naive, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (q, k, v), upstream),
        torch.autograd.grad(naive, (q, k, v), upstream),
        rtol=0,
        atol=1e-6,
    )


def causal_attention_of_each_sequence(
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
    """Do what torch's `varlen_attn` documents, which runs on GPUs alone."""
    bounds = cu_seq_q.tolist()
    assert cu_seq_q.dtype == torch.int32 and torch.equal(cu_seq_q, cu_seq_k)
    assert max_q == max_k == max(end - start for start, end in itertools.pairwise(bounds))
    before, after = window_size  # any number of tokens before: -1
    assert after == 0
    sight = Sight(None if before == -1 else before + 1, scale)
    return naive_attention(query, key, value, np.arange(len(query)), np.asarray(bounds), sight)


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("shared", [True, False], ids=["shared beginnings", "plain"])
def test_the_kernel_for_gpus_gives_what_the_one_for_cpus_gives(
    shared: bool, sight: Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "varlen_attn", causal_attention_of_each_sequence)
    monkeypatch.setattr(flash, "sees_windows", lambda attend, device: True)  # see test_flash.py
    tokens = [(1, 2, 3, 4, 5), (1, 2, 9) if shared else (7, 2, 9), (8, 8)]
    ((batch,),) = pack(
        [TrainingSequence(each, 1, 1.0, (-1.0,) * (len(each) - 1), 1.0) for each in tokens], Packing(1, 10_000)
    )
    layout = token_layout(batch)
    assert layout.is_plain is not shared
    torch.manual_seed(0)
    q, k, v = (torch.randn(len(layout.tokens_N), heads, SIZE, requires_grad=True) for heads in (HEADS, GROUPS, GROUPS))
    padded, varlen = (KERNELS[device](layout, torch.device("cpu"))(q, k, v, sight) for device in ("cpu", "cuda"))
    torch.testing.assert_close(varlen, padded, rtol=0, atol=1e-6)
    upstream = torch.randn_like(padded)
    torch.testing.assert_close(
        torch.autograd.grad(varlen, (q, k, v), upstream),
        torch.autograd.grad(padded, (q, k, v), upstream),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("sight", [PLAIN, Sight(2)], ids=str)
@pytest.mark.parametrize("device", KERNELS)
@pytest.mark.parametrize("shared", [True, False], ids=["shared beginnings", "plain"])
def test_tokens_that_fill_up_shares_change_no_other_and_have_no_gradient(
    device: Literal["cpu", "cuda"], shared: bool, sight: Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash, "varlen_attn", causal_attention_of_each_sequence)
    monkeypatch.setattr(flash, "sees_windows", lambda attend, device: True)  # see test_flash.py
    tokens = [(1, 2, 3, 4, 5), (1, 2, 9) if shared else (7, 2, 9), (8, 8)]
    ((batch,),) = pack(
        [TrainingSequence(each, 1, 1.0, (-1.0,) * (len(each) - 1), 1.0) for each in tokens], Packing(1, 10_000)
    )
    layout = token_layout(batch)
    number, filled = len(layout.tokens_N), layout.filled(7)
    torch.manual_seed(0)
    given = [torch.randn(len(filled.tokens_N), heads, SIZE, requires_grad=True) for heads in (HEADS, GROUPS, GROUPS)]
    assert 0 < len(given[0]) - number < 7
    whole = KERNELS[device](filled, torch.device("cpu"))(*given, sight)
    alone = KERNELS[device](layout, torch.device("cpu"))(*(x[:number] for x in given), sight)
    assert whole.isfinite().all() and len(whole) == len(given[0])
    torch.testing.assert_close(whole[:number], alone, rtol=0, atol=1e-6)
    for gradient in torch.autograd.grad(whole[:number].square().sum(), given):
        assert (gradient[number:] == 0).all()


class First:
    """A kernel that returns what it was given, side by side."""

    sight = PLAIN

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight = PLAIN) -> torch.Tensor:
        self.sight = sight
        return torch.cat([q, k, v], 1)


@pytest.mark.parametrize("layer", [1, 2])
def test_attention_turns_queries_and_keys_by_the_positions_of_its_layer_and_leaves_values(layer: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, SIZE) for _ in range(3))
    usual, local = torch.rand(2, 3, 1, SIZE // 2)
    kernel, of_local = First(), (local.cos(), local.sin())
    packed = PackedTokens(qkv_format="thd", kernel=kernel, cos=usual.cos(), sin=usual.sin(), local=of_local)
    config = SimpleNamespace(window_size=(3, 0), window_attn_skip_freq=[True, False], softmax_scale=0.3)
    out = PackedAttention(config, layer)(q, k, v, None, packed_seq_params=packed)
    angles = local if layer == 1 else usual
    assert kernel.sight == (Sight(4, 0.3) if layer == 1 else Sight(None, 0.3))
    turned = [
        torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) * torch.polar(angles * 0 + 1, angles) for x in (q, k)
    ]
    wanted = torch.cat([*(torch.cat([x.real, x.imag], -1) for x in turned), v], 1)
    torch.testing.assert_close(out, wanted.flatten(1))


def naive_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    node_T: np.ndarray,
    bounds: np.ndarray,
    sight: Sight = PLAIN,
) -> torch.Tensor:
    outputs = []
    for start, end in itertools.pairwise(bounds):
        nodes = torch.from_numpy(node_T[start:end])
        keys, values = (x[nodes].repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q[nodes], keys) * (sight.scale or SIZE**-0.5)
        mask = torch.ones(len(nodes), len(nodes)).tril().triu(1 - (sight.window or len(nodes))).bool()
        outputs.append(torch.einsum("hij,jhd->ihd", F.softmax(scores.masked_fill(~mask, -torch.inf), -1), values))
    return torch.cat(outputs)
