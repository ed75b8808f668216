"""Attention of context-parallel ranks: each has the queries of its share, and gathers the keys and values of all.

Going backward, the gradients of keys and values are summed over the ranks, each of which keeps those of its own tokens.

Axes: N computed tokens, M of a rank, R response tokens, H heads, G key-value heads, D head size.
"""

from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from rljob_trainer.learners.rank.attention.attention import within
from rljob_trainer.learners.rank.attention.context_share import ContextShare, path
from rljob_trainer.learners.rank.attention.flash import PLAIN, Runs, Sight, fastest_from_the_end, uploaded
from rljob_trainer.learners.rank.attention.layout import Indices, TokenLayout


class Gather(Protocol):
    """How a rank gets the keys and values of all: `Gathered`, or a fake of tests in one process."""

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return those of all ranks [ranks * M, G, D], share after share. Differentiable."""


class Gathered:
    """Gathers over a process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def __call__(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both: torch.Tensor = _AllGather.apply(torch.cat([keys, values], 1), self._group)
        all_keys, all_values = both.chunk(2, 1)
        return all_keys, all_values


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        whole = own.new_empty((len(own) * group.size(), *own.shape[1:]))
        dist.all_gather_into_tensor(whole, own.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        own = grad.new_empty((len(grad) // ctx.group.size(), *grad.shape[1:]))
        dist.reduce_scatter_tensor(own, grad.contiguous(), group=ctx.group)
        return own, None


class Results:
    """Brings what ranks found for their own response tokens to all of them, so that each computes the whole loss."""

    def __init__(self, own: Indices, length: int, group: dist.ProcessGroup, device: torch.device) -> None:
        """`own` are this rank's among `length` response tokens."""
        self._own, self._length, self._group = uploaded(torch.from_numpy(own), device), length, group

    def own(self, values_R: torch.Tensor) -> torch.Tensor:
        """Return this rank's."""
        return values_R.index_select(-1, self._own)

    def whole(self, own: torch.Tensor) -> torch.Tensor:
        """Return [..., R] for this rank's [..., few]. Differentiable: all ranks then have the same gradient of it."""
        whole_R: torch.Tensor = _Whole.apply(own, self._own, self._length, self._group)
        return whole_R


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, index: torch.Tensor, length: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.save_for_backward(index)
        whole = own.new_zeros((*own.shape[:-1], length))
        whole.index_copy_(-1, index, own)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(-1, index), None, None, None


class PaddedShare:
    """For CPUs: a row for every sequence of which this rank has tokens, with a mask of what each of them attends to."""

    def __init__(self, layout: TokenLayout, share: ContextShare, gather: Gather, device: torch.device) -> None:
        self._gather = gather
        lengths = [chunk.length for chunk in share.chunks]
        sequences, row_M = np.unique(
            np.repeat([chunk.sequence for chunk in share.chunks], lengths), return_inverse=True
        )
        stops = [max(chunk.stop for chunk in share.chunks if chunk.sequence == sequence) for sequence in sequences]
        self._rows, width, longest = len(sequences), int(np.bincount(row_M).max()), max(stops)
        order = np.argsort(row_M, kind="stable")
        within = np.arange(len(row_M)) - np.searchsorted(row_M[order], row_M[order])
        slot_M = np.empty_like(row_M)
        slot_M[order] = row_M[order] * width + within
        queries, depths = np.zeros((2, self._rows * width), np.int64)
        queries[slot_M], depths[slot_M] = np.arange(len(row_M)), layout.depth_N[share.tokens_M]
        keys = np.zeros((self._rows, longest), np.int64)
        for row, (sequence, stop) in enumerate(zip(sequences, stops, strict=True)):
            keys[row, :stop] = share.place_N[path(layout, sequence, stop)]
        self._queries, self._keys = (torch.from_numpy(each.reshape(-1)).to(device) for each in (queries, keys))
        self._depths, self._slot_M = (torch.from_numpy(each).to(device) for each in (depths, slot_M))
        self._depths = self._depths.view(self._rows, 1, width, 1)
        self._place_L = torch.arange(longest, device=device)
        self._masks: dict[int | None, torch.Tensor] = {}
        """by windows"""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight = PLAIN) -> torch.Tensor:
        """Return [M, H, D] for queries [M, H, D] and keys and values [M, G, D]."""
        all_k, all_v = self._gather(k, v)
        q, k, v = (self._pad(x, index) for x, index in ((q, self._queries), (all_k, self._keys), (all_v, self._keys)))
        if sight.window not in self._masks:
            self._masks[sight.window] = within(self._depths, self._place_L, sight.window)
        mask = self._masks[sight.window]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sight.scale, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self._slot_M)

    def _pad(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, index).unflatten(0, (self._rows, -1)).transpose(1, 2)


class VarlenShare:
    """For GPUs: flash attention of each chunk to all of its sequence up to its own end."""

    def __init__(self, layout: TokenLayout, share: ContextShare, gather: Gather, device: torch.device) -> None:
        self._gather, self._attend = gather, fastest_from_the_end(device)
        keys = [share.place_N[path(layout, chunk.sequence, chunk.stop)] for chunk in share.chunks]
        self._keys = uploaded(torch.from_numpy(np.concatenate(keys)), device)
        self._queries_of = Runs.of([chunk.length for chunk in share.chunks], device)
        self._keys_of = Runs.of([chunk.stop for chunk in share.chunks], device)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight = PLAIN) -> torch.Tensor:
        """Return [M, H, D] for queries [M, H, D] and keys and values [M, G, D]."""
        keys, values = (x.index_select(0, self._keys) for x in self._gather(k, v))
        return self._attend(q, keys, values, self._queries_of, self._keys_of, sight)
