"""Weights in FP8, as they are published: each matrix in e4m3, and a scale for each of its blocks of 128 x 128.

    (q_proj.weight, bf16) ─► (q_proj.weight, e4m3), (q_proj.weight_scale_inv, fp32)

What a block stands for is weight * scale, with scale = largest magnitude / 448, as in DeepSeek's and Qwen's
checkpoints.
"""

import torch

from rljob_api.sizing.fp8 import BLOCK, scale_axes
from rljob_trainer.sync.rank.sender import SendError

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
"""448"""
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""a smaller scale would lose digits, or be 0"""
AT_ONCE = 16
"""rows of blocks that are quantised at a time: they take their size in fp32 three times, beside the learner"""

# Axes: O outputs, I inputs; R, C rows and columns of blocks.


def parts(name: str, weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a matrix [O, I] in e4m3, and the fp32 scales [R, C] of its blocks; the last blocks may be smaller.

    A block of zeros, or of numbers that are too small for a scale, has the scale 1. Raises SendError if a number is not
    finite.
    """
    quantised_OI = torch.empty(weight_OI.shape, dtype=E4M3, device=weight_OI.device)
    scale_RC = torch.empty(scale_axes(tuple(weight_OI.shape)), dtype=torch.float32, device=weight_OI.device)
    for block in range(0, len(scale_RC), AT_ONCE):
        rows = slice(block * BLOCK, (block + AT_ONCE) * BLOCK)
        quantised_OI[rows], scale_RC[block : block + AT_ONCE] = _quantised(weight_OI[rows])
    if not bool(scale_RC.isfinite().all()):
        raise SendError(f"quantise {name}: has numbers that are not finite")
    return quantised_OI, scale_RC


def _quantised(weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return some rows of a matrix and their scales, which are not finite where a number of the block is not."""
    outputs, inputs = weight_OI.shape
    rows, columns = scale_axes((outputs, inputs))
    padding = (0, columns * BLOCK - inputs, 0, rows * BLOCK - outputs)
    padded_OI = torch.nn.functional.pad(weight_OI.detach().float(), padding)
    blocks_RxCx = padded_OI.view(rows, BLOCK, columns, BLOCK)
    scale_RC = blocks_RxCx.abs().amax(dim=(1, 3)) / LARGEST
    scale_RC = torch.where(scale_RC < SMALLEST_SCALE, 1.0, scale_RC)
    # A quotient that is rounded up beyond the largest number would become NaN.
    scaled_RxCx = (blocks_RxCx / scale_RC[:, None, :, None]).clamp(-LARGEST, LARGEST)
    return scaled_RxCx.view(rows * BLOCK, columns * BLOCK)[:outputs, :inputs].to(E4M3), scale_RC
