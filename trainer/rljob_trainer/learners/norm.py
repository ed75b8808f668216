"""RMSNorm for Megatron's layers, by PyTorch's own kernel."""

from typing import Any

import torch
import torch.nn.functional as F


class RmsNorm(torch.nn.Module):
    """Megatron's local spec has one too, but its weight is always fp32 and it refuses any other configuration."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Tensor ranks that norm different tokens have different gradients of it: Megatron sums those that say so.
        self.weight.sequence_parallel = config.sequence_parallel
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)
