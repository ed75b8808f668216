"""Packed attention, against attention of one sequence at a time."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F

from rljob_trainer.learners.attention import PaddedKernel
from rljob_trainer.learners.layout import token_layout
from rljob_trainer.packing import Sequence, pack

HEADS, GROUPS, SIZE = 4, 2, 8


def test_each_sequence_attends_causally_to_itself_alone_and_gradients_agree() -> None:
    sequences = [
        Sequence(tokens, 1, 1.0, (-1.0,) * (len(tokens) - 1), 1.0)
        for tokens in ((1, 2, 3, 4, 5), (1, 2, 9), (1, 2, 3, 7, 7, 7, 7), (8, 8))
    ]
    ((batch,),) = pack(sequences, 1, 10_000)
    layout = token_layout(batch)
    torch.manual_seed(0)
    q, k, v = (torch.randn(len(layout.tokens_N), heads, SIZE, requires_grad=True) for heads in (HEADS, GROUPS, GROUPS))
    upstream = torch.randn(len(layout.tokens_N), HEADS, SIZE)
    ours = PaddedKernel(layout, torch.device("cpu"))(q, k, v)
    naive = naive_attention(q, k, v, layout.node_T, batch.cu_seqlens_S1)[torch.from_numpy(layout.first_N)]
    torch.testing.assert_close(ours, naive, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        torch.autograd.grad(ours, (q, k, v), upstream),
        torch.autograd.grad(naive, (q, k, v), upstream),
        rtol=0,
        atol=1e-6,
    )


def naive_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, node_T: np.ndarray, bounds: np.ndarray
) -> torch.Tensor:
    outputs = []
    for start, end in itertools.pairwise(bounds):
        nodes = torch.from_numpy(node_T[start:end])
        keys, values = (x[nodes].repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q[nodes], keys) / SIZE**0.5
        mask = torch.ones(len(nodes), len(nodes)).tril().bool()
        outputs.append(torch.einsum("hij,jhd->ihd", F.softmax(scores.masked_fill(~mask, -torch.inf), -1), values))
    return torch.cat(outputs)
