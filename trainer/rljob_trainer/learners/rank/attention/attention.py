"""Attention over packed sequences, as a Megatron core-attention module.

Megatron's own (without Transformer Engine) refuses packed sequences. Ours turns queries and keys by their positions,
then attends with one of two kernels, chosen once: flash attention of variable lengths on GPUs (`flash.py`), and rows
padded to the longest sequence on CPUs. Both know grouped queries, so keys and values are never repeated.

Axes: N computed tokens, T packed tokens, S sequences, L longest, H heads, D head size (see `layout.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.utils import is_layer_window_attention

from rljob_trainer.learners.rank.attention.flash import PLAIN, Runs, Sight, fastest, uploaded
from rljob_trainer.learners.rank.attention.layout import TokenLayout
from rljob_trainer.learners.rank.attention.rope import rotate


class Kernel(Protocol):
    """Causal attention of each sequence to itself; prepared once for each micro-batch, for all kinds of layers."""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight = PLAIN) -> torch.Tensor:
        """Return [N, H, D] for queries [N, H, D] and keys and values [N, fewer H, D]."""


def within(query: torch.Tensor, key: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return whether queries at these positions see keys at those."""
    causal = key <= query
    return causal if window is None else causal & (key > query - window)


class PaddedKernel:
    """For CPUs: every sequence a row, causal attention in all rows at once; padding on the right needs no mask."""

    def __init__(self, layout: TokenLayout, device: torch.device) -> None:
        slots, slot_N = layout.padded()
        self._slots = torch.from_numpy(slots).to(device)
        self._slot_N = torch.from_numpy(slot_N).to(device)
        self._rows = len(layout.lengths_S)
        self._seen: dict[int, torch.Tensor] = {}
        """by windows, which key each query sees"""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight = PLAIN) -> torch.Tensor:
        q, k, v = (self._pad(x) for x in (q, k, v))
        seen = self._within(sight.window, q.shape[2], q.device)
        out_S_H_L_D = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, scale=sight.scale, enable_gqa=True
        )
        return out_S_H_L_D.transpose(1, 2).flatten(0, 1).index_select(0, self._slot_N)

    def _within(self, window: int | None, longest: int, device: torch.device) -> torch.Tensor | None:
        """Return a mask [L, L]; None where the window is no shorter than the longest sequence."""
        if window is None or window >= longest:
            return None
        if window not in self._seen:
            place_L = torch.arange(longest, device=device)
            self._seen[window] = within(place_L[:, None], place_L, window)
        return self._seen[window]

    def _pad(self, x_N_H_D: torch.Tensor) -> torch.Tensor:
        return x_N_H_D.index_select(0, self._slots).unflatten(0, (self._rows, -1)).transpose(1, 2)


class VarlenKernel:
    """For GPUs: flash attention over sequences laid end to end; tokens that share a beginning are laid out in full."""

    def __init__(self, layout: TokenLayout, device: torch.device) -> None:
        self._attend = fastest(device)
        self._runs = Runs.of(layout.lengths_S.tolist(), device)
        self._plain = layout.is_plain
        if not self._plain:
            self._node_T = uploaded(torch.from_numpy(layout.node_T), device)
            self._first_N = uploaded(torch.from_numpy(layout.first_N), device)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sight: Sight = PLAIN) -> torch.Tensor:
        if not self._plain:
            q, k, v = (x.index_select(0, self._node_T) for x in (q, k, v))
        out = self._attend(q, k, v, self._runs, sight=sight)
        return out if self._plain else out.index_select(0, self._first_N)


KERNELS: dict[Literal["cpu", "cuda"], type[PaddedKernel] | type[VarlenKernel]] = {
    "cpu": PaddedKernel,
    "cuda": VarlenKernel,
}


@dataclass
class PackedTokens(PackedSeqParams):
    """A micro-batch as Megatron hands it from layer to layer, with what all layers share."""

    kernel: Kernel | None = None
    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    local: tuple[torch.Tensor, torch.Tensor] | None = None
    """cosines and sines of layers with a window; None: there are none"""
    rotation: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = rotate
    """turns queries or keys by cosines and sines"""
    positions_R: torch.Tensor | None = None
    """computed tokens whose hidden states the loss needs"""
    routing: Any = None
    """`routing.Routing`, for the routers of a mixture of experts; None: they only choose"""


class PackedAttention(torch.nn.Module):
    """Megatron's core attention for packed tokens: causal, without dropout. It has no parameters."""

    def __init__(self, config: Any, layer_number: int, **_: Any) -> None:
        """Take what Megatron passes to every core attention; mask type, dropout and groups are fixed for us."""
        super().__init__()
        self.config = config
        self.layer_number = layer_number
        self.is_local = is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
        self.sight = Sight(config.window_size[0] + 1 if self.is_local else None, config.softmax_scale)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        packed_seq_params: PackedTokens,
        **_: Any,
    ) -> torch.Tensor:
        """Return [N, H * D]."""
        packed = packed_seq_params
        assert packed.kernel is not None and packed.cos is not None and packed.sin is not None
        angles = packed.local if self.is_local else (packed.cos, packed.sin)
        assert angles is not None
        q, k = (packed.rotation(x, *angles) for x in (query, key))
        return packed.kernel(q, k, value, self.sight).flatten(1)


def recomputes_attention(config: Any) -> bool:
    """Return whether Megatron is to compute core attention again in the backward pass; only its own module can."""
    return config.recompute_granularity == "selective" and "core_attn" in config.recompute_modules
