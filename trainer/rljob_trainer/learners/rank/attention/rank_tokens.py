"""What a rank computes of a micro-batch: all of it, or its share, where context-parallel ranks split it.

Axes: N computed tokens, M those of this rank, R response tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from megatron.core import parallel_state

from rljob_trainer.learners.rank.attention.attention import KERNELS, Kernel, PackedTokens
from rljob_trainer.learners.rank.attention.context import Gathered, PaddedShare, Results, VarlenShare
from rljob_trainer.learners.rank.attention.context_share import context_share
from rljob_trainer.learners.rank.attention.flash import uploaded
from rljob_trainer.learners.rank.attention.layout import Indices, TokenLayout
from rljob_trainer.learners.rank.attention.rope import Rope, rotate, rotate_pairs


@dataclass(frozen=True, slots=True)
class RankTokens:
    """A micro-batch as one rank computes it."""

    layout: TokenLayout
    """of the whole micro-batch"""
    tokens_M: Indices
    """numbers of the computed tokens that this rank has; the first one again where tokens only fill up its share"""
    local_N: Indices
    """where it has each computed token; -1: another rank has it"""
    kernel: Kernel
    results: Results | None = None
    """how ranks exchange what they found; None: this rank has all response tokens"""

    def own(self, values_R: torch.Tensor) -> torch.Tensor:
        """Return the values of the response tokens that this rank computes."""
        return values_R if self.results is None else self.results.own(values_R)

    def whole(self, own: torch.Tensor) -> torch.Tensor:
        """Return [..., R] of all ranks for what this rank found of its own response tokens. Collective."""
        return own if self.results is None else self.results.whole(own)

    def input(self, device: torch.device) -> torch.Tensor:
        """Return the tokens that this rank's model is called with."""
        return uploaded(torch.from_numpy(self.layout.tokens_N[self.tokens_M]), device)

    def packed(self, rope: Rope, device: torch.device) -> PackedTokens:
        """Return what the layers need of it, on `device`."""
        depths = uploaded(torch.from_numpy(self.layout.depth_N[self.tokens_M]), device)
        cos, sin = rope.angles(depths)
        local_R = self.local_N[self.layout.positions_R]
        positions_R = uploaded(torch.from_numpy(local_R[local_R >= 0]), device)
        rotation = rotate_pairs if rope.pairs else rotate
        return PackedTokens(
            qkv_format="thd",
            kernel=self.kernel,
            cos=cos,
            sin=sin,
            local=rope.local_angles(depths),
            rotation=rotation,
            positions_R=positions_R,
        )


def rank_tokens(layout: TokenLayout, device: torch.device, shares: int = 1) -> RankTokens:
    """Return what this rank computes of a micro-batch: a number of tokens that divides into equal `shares`."""
    if parallel_state.get_context_parallel_world_size() == 1:
        filled, every_N = layout.filled(shares), np.arange(len(layout.tokens_N))
        tokens_M = np.pad(every_N, (0, len(filled.tokens_N) - len(every_N)))
        return RankTokens(
            layout, tokens_M, every_N, KERNELS["cuda" if device.type == "cuda" else "cpu"](filled, device)
        )
    group = parallel_state.get_context_parallel_group()
    share = context_share(layout, group.rank(), group.size(), shares)
    attend = VarlenShare if device.type == "cuda" else PaddedShare
    own_R = np.flatnonzero(share.local_N[layout.positions_R] >= 0)
    return RankTokens(
        layout=layout,
        tokens_M=share.tokens_M,
        local_N=share.local_N,
        kernel=attend(layout, share, Gathered(group), device),
        results=Results(own_R, len(layout.positions_R), group, device),
    )
