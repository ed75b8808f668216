"""The ratio of new to old policy, exp(new - old), and products that stay exact where it overflows: beyond 88.7 in fp32.

There a bound of the objective often makes the gradient 0. Autograd would multiply that 0 by the infinite slope of exp,
and one NaN makes the optimizer skip the whole step.
"""

from typing import Any, cast

import torch


def ratio(log_ratio_R: torch.Tensor) -> torch.Tensor:
    """Return exp of the log-ratio; an infinite one whose gradient is not wanted has the gradient 0, not NaN."""
    return cast(torch.Tensor, _Exp.apply(log_ratio_R))


def product(values_R: torch.Tensor, weights_R: torch.Tensor) -> torch.Tensor:
    """Return value x weight; 0 where the weight is 0, also if the value is infinite."""
    return torch.where(weights_R == 0, 0.0, values_R * weights_R)


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> torch.Tensor:
        (y,), (slope,) = ctx.saved_tensors, slopes
        return torch.where((slope == 0) & y.isinf(), 0.0, slope * y)
