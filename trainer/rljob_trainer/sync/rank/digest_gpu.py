"""SGLang's digest of tensors on a GPU. A separate module because importing SGLang takes seconds and needs a GPU."""

from collections.abc import Sequence

import torch
from sglang.kernels.ops.memory.gpu_tensor_hash import gpu_tensor_hash


def gpu_digest(pieces: Sequence[torch.Tensor]) -> str:
    """Return what SGLang 0.5.17 answers for a tensor made of these pieces: a hash of their bytes."""
    return f"{gpu_tensor_hash(torch.cat([piece.reshape(-1).view(torch.uint8) for piece in pieces])):016x}"
