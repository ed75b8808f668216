"""Weights in FP8, as they are published: each matrix in e4m3, and a scale for each of its blocks of 128 x 128.

    (q_proj.weight, bf16) ─► (q_proj.weight, e4m3), (q_proj.weight_scale_inv, fp32)

All transports send these pairs and digest them, so that an engine is verified to hold these bytes. What a block stands
for is weight * scale, with scale = largest magnitude / 448, as in DeepSeek's and Qwen's checkpoints.
"""

from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator

import torch

from rljob_api.sizing.quantised import BLOCK, SCALE, is_linear, is_matrix, scale_axes
from rljob_trainer.sync.layout import LayoutError, TensorSpec
from rljob_trainer.sync.sender import Named, SendError
from rljob_trainer.text import some

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
"""448"""
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""a smaller scale would lose digits, or be 0"""
AT_ONCE = 16
"""rows of blocks that are quantised at a time: they take their size in fp32 three times, beside the learner"""
NAMED = 5

# Axes: O outputs, I inputs; R, C rows and columns of blocks.


def quantised(tensors: Named, left_alone: Collection[str]) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Yield all tensors; in the place of a matrix whose module is not `left_alone`, its FP8 weights and their scales.

    Exhausts `tensors` in any case: exporting is collective. Raises SendError for a matrix that is not finite.
    """
    export = iter(tensors)
    try:
        for name, tensor in export:
            if not _is_quantised(name, tuple(tensor.shape), left_alone):
                yield name, tensor
                continue
            weight, scale = pair(name, tensor)
            yield name, weight
            yield name + SCALE, scale
    finally:
        deque(export, maxlen=0)


def specs(published: Iterable[TensorSpec], left_alone: Collection[str]) -> tuple[TensorSpec, ...]:
    """Return what `quantised` makes of tensors with these names, shapes and types.

    Raises LayoutError where the list that engines have got does not fit the model's real tensors.
    """
    given = tuple(published)
    check(given, left_alone)
    return tuple(each for spec in given for each in _spec(spec, left_alone))


def check(given: Iterable[TensorSpec], left_alone: Collection[str]) -> None:
    """Raise LayoutError if a matrix that is no linear layer would be quantised, or a linear layer would not."""
    matrices = [spec.name for spec in given if is_matrix(spec.name, spec.shape)]
    unlisted = [name for name in matrices if not is_linear(name) and name.removesuffix(".weight") not in left_alone]
    listed = [name for name in matrices if is_linear(name) and name.removesuffix(".weight") in left_alone]
    if unlisted:
        raise LayoutError(f"modules_to_not_convert lacks what is no linear layer: {some(unlisted, NAMED)}")
    if listed:
        raise LayoutError(f"modules_to_not_convert has linear layers: {some(listed, NAMED)}")


def pair(name: str, weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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


def _spec(spec: TensorSpec, left_alone: Collection[str]) -> Iterator[TensorSpec]:
    if not _is_quantised(spec.name, spec.shape, left_alone):
        yield spec
        return
    yield TensorSpec(spec.name, spec.shape, "float8_e4m3fn")
    yield TensorSpec(spec.name + SCALE, scale_axes(spec.shape), "float32")


def _is_quantised(name: str, axes: tuple[int, ...], left_alone: Collection[str]) -> bool:
    return is_matrix(name, axes) and name.removesuffix(".weight") not in left_alone
