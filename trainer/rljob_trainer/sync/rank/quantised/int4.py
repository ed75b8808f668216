"""Weights in INT4, as they are published: each group of 32 weights of a row in 4 bits, and a scale for it.

    (q_proj.weight, bf16) ─► (q_proj.weight_packed, int32), (q_proj.weight_scale, bf16), (q_proj.weight_shape, int32)

What a word stands for is (its 4 bits - 8) * scale, with scale = largest magnitude / 7.5, rounded to bf16: so it is in
compressed-tensors, to the bit. Weights are rounded to the nearest number, a half to the even one.
"""

import torch

from rljob_api.sizing.int4 import GROUP, IN_WORD
from rljob_trainer.sync.rank.sender import SendError

LOWEST, HIGHEST = -8, 7
HALF_RANGE = (HIGHEST - LOWEST) / 2
SCALES = torch.bfloat16
SMALLEST_SCALE = torch.finfo(SCALES).tiny
"""a smaller scale would lose digits, or be 0"""
AT_ONCE = 2**24
"""weights that are quantised at a time: they take their size in fp32 a few times, beside the learner"""

# Axes: O outputs, I inputs; G groups of a row, W words of a row; g weights of a group, b bytes of a row.


def parts(name: str, weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a matrix [O, I] as words [O, W], with the scales [O, G] of its groups, and its shape [2].

    A group of zeros, or of numbers that are too small for a scale, has the scale 1. Raises SendError if a number is not
    finite.
    """
    outputs, inputs = weight_OI.shape
    packed_OW = torch.empty((outputs, inputs // IN_WORD), dtype=torch.int32, device=weight_OI.device)
    scale_OG = torch.empty((outputs, inputs // GROUP), dtype=SCALES, device=weight_OI.device)
    at_once = max(1, AT_ONCE // inputs)
    for first in range(0, outputs, at_once):
        rows = slice(first, first + at_once)
        packed_OW[rows], scale_OG[rows] = _quantised(weight_OI[rows])
    if not bool(scale_OG.isfinite().all()):
        raise SendError(f"quantise {name}: has numbers that are not finite")
    return packed_OW, scale_OG, torch.tensor([outputs, inputs], dtype=torch.int32, device=weight_OI.device)


def _quantised(weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return some rows of a matrix and their scales, which are not finite where a number of the group is not."""
    outputs, inputs = weight_OI.shape
    groups_OGg = weight_OI.detach().float().contiguous().view(outputs, inputs // GROUP, GROUP)
    scale_OG = (groups_OGg.abs().amax(dim=-1) / HALF_RANGE).to(SCALES)
    scale_OG = torch.where(scale_OG < SMALLEST_SCALE, 1.0, scale_OG).to(SCALES)
    numbers_OGg = (groups_OGg / scale_OG.float()[:, :, None]).round_().clamp_(LOWEST, HIGHEST) - LOWEST
    return packed(numbers_OGg.view(outputs, inputs).to(torch.uint8)), scale_OG


def packed(numbers_OI: torch.Tensor) -> torch.Tensor:
    """Return numbers from 0 to 15 as words [O, W]; the first of eight is in the lowest bits."""
    bytes_Ob = numbers_OI[:, 0::2] | numbers_OI[:, 1::2] << 4
    return bytes_Ob.view(torch.int32)
