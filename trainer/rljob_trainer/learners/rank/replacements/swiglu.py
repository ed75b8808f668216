"""The gated activations of the MLP, for Megatron on a CPU.

Megatron has fused ones, compiled by torch.compile, which on a CPU needs a C++ compiler at run time; what it does
otherwise copies the wide gradient once more to join its two halves.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

Activation = Callable[[torch.Tensor], torch.Tensor]


def swiglu(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return silu(first half) * second half of the last axis.

    Ignores what else Megatron passes to its `bias_swiglu_impl`: our models have no bias there.
    """
    return _Swiglu.apply(x)


def weighted_swiglu(x: torch.Tensor, _bias: None, weights_N_1: torch.Tensor, *_: Any) -> torch.Tensor:
    """Return the same times the router's weight of each token, which is in fp32: for `weighted_bias_swiglu_impl`."""
    return (swiglu(x) * weights_N_1).to(x.dtype)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return _gradient(ctx, grad, F.silu, torch.ops.aten.silu_backward.grad_input)


def geglu(x: torch.Tensor, _bias: None = None) -> torch.Tensor:
    """Return gelu(first half) * second half, with GELU by tanh: for `bias_geglu_impl`."""
    return _Geglu.apply(x)


class _Geglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        backward = partial(torch.ops.aten.gelu_backward.grad_input, approximate="tanh")
        return _gradient(ctx, grad, partial(F.gelu, approximate="tanh"), backward)


def _gradient(ctx: Any, grad: torch.Tensor, activation: Activation, backward: Callable[..., Any]) -> torch.Tensor:
    """Return the gradient of activation(first half) * second half, written into both halves of one tensor."""
    (x,) = ctx.saved_tensors
    gate, up = x.chunk(2, dim=-1)
    out = torch.empty_like(x)
    grad_gate, grad_up = out.chunk(2, dim=-1)
    torch.mul(grad, activation(gate), out=grad_up)
    backward(grad * up, gate, grad_input=grad_gate)
    return out
