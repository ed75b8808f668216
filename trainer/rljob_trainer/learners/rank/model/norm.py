"""RMSNorm for Megatron's layers."""

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


class CentredNorm(RmsNorm):
    """Gemma's: it multiplies by 1 + weight, in fp32, and rounds only then."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = _CentredNorm.apply(x, self.weight, self._eps)
        return normed


class _CentredNorm(torch.autograd.Function):
    """Keeps its input as it is; autograd would keep two copies of it in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale * (1.0 + weight.float())).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        normed, wide = x.float() * scale, grad.float()
        of_weight = (wide * normed).flatten(0, -2).sum(0)
        wide = wide * (1.0 + weight.float())
        of_x = scale * (wide - normed * (wide * normed).mean(-1, keepdim=True))
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None
