"""What published weights stand for, by the definition: a number times the scale of its block or group."""

from collections.abc import Iterable

import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

from rljob_api.sizing import fp8, int4

Tensors = dict[str, torch.Tensor]
WEIGHT = ".weight"


def expanded(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return a matrix in fp32 that was in FP8, block by block."""
    found = torch.empty(weight.shape)
    for row in range(scale.shape[0]):
        for column in range(scale.shape[1]):
            rows, columns = (slice(each * fp8.BLOCK, (each + 1) * fp8.BLOCK) for each in (row, column))
            found[rows, columns] = weight[rows, columns].float() * scale[row, column]
    return found


def unpacked(words: torch.Tensor, scale: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
    """Return a matrix in fp32 that was in INT4, by the code of compressed-tensors."""
    numbers = unpack_from_int32(words, int4.BITS, torch.Size(shape.tolist()))
    return numbers.float() * scale.float().repeat_interleave(int4.GROUP, dim=1)


def dequantised(published: Iterable[tuple[str, torch.Tensor]]) -> Tensors:
    """Return a checkpoint in bf16 with the weights that published tensors stand for."""
    given, found = dict(published), dict[str, torch.Tensor]()
    for name, tensor in given.items():
        module, _, part = name.rpartition(".")
        if part == "weight" and module + fp8.SCALE in given:
            found[name] = expanded(tensor, given[module + fp8.SCALE]).bfloat16()
        elif part == "weight_packed":
            others = (given[module + ending] for ending in (int4.SCALE, int4.SHAPE))
            found[module + WEIGHT] = unpacked(tensor, *others).bfloat16()
        elif not part.startswith("weight_"):
            found[name] = tensor
    return found
