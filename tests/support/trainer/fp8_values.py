"""What published FP8 weights stand for, by the definition: a weight times the scale of its block."""

from collections.abc import Iterable

import torch

from rljob_api.sizing.quantised import BLOCK, SCALE

Tensors = dict[str, torch.Tensor]


def expanded(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return a matrix in fp32, block by block."""
    found = torch.empty(weight.shape)
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            block = slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK)
            found[block] = weight[block].float() * scale[row, column]
    return found


def dequantised(published: Iterable[tuple[str, torch.Tensor]]) -> Tensors:
    """Return a checkpoint in bf16 with the weights that published tensors stand for."""
    given = dict(published)
    plain = {name: tensor for name, tensor in given.items() if not name.endswith(SCALE)}
    return {
        name: expanded(tensor, given[name + SCALE]).bfloat16() if name + SCALE in given else tensor
        for name, tensor in plain.items()
    }
