"""Matrix products of a learner on a CPU, by oneDNN.

PyTorch multiplies fp32 matrices with MKL, which on an AMD processor takes twice the time of oneDNN; the products are
three quarters of a step. docs/performance.md has the figures.
"""

from typing import Any

import torch

SMALLEST = 2**26
"""multiplications in a product from which on oneDNN pays: a kernel for each shape takes it a millisecond"""
_plain = torch.matmul  # `cpu.py` puts `matmul` in its place


def matmul(left: torch.Tensor, right: torch.Tensor, **named: Any) -> torch.Tensor:
    """Return left @ right. Where autograd would record it, by PyTorch: oneDNN's product has no gradient."""
    if named or torch.is_grad_enabled() or not pays(left, right):
        return _plain(left, right, **named)
    return product(left, right)


def pays(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether oneDNN multiplies [..., M, K] by [K, N] faster."""
    if left.is_cuda or right.ndim != 2 or not left.dtype == right.dtype == torch.float32:
        return False
    return torch.backends.mkldnn.is_available() and bool(left.numel() * right.shape[1] >= SMALLEST)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left [..., M, K] @ right [K, N] by oneDNN; both may be transposed views."""
    done: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")
    return done
