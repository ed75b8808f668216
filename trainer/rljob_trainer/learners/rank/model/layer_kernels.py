"""Triton kernels of a layer outside its products and its attention: RMSNorm, the residual's sum, and the gated MLP.

Each reads and writes every element once. PyTorch's backward pass of RMSNorm reads its input twice, adds the residual by
a separate kernel, and a gate compiled by torch.compile costs the host more time than the GPU. Sums are in fp32.
Without a GPU the kernels run in Triton's interpreter (`TRITON_INTERPRET=1`).

Axes: N tokens, H hidden, F width of the MLP.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_COLUMNS = 1024
"""columns of the MLP that a program handles"""
_PROGRAMS = 1024
"""largest number of programs that share the rows of a weight's gradient; a fixed order of its sum"""


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return x [..., H] normed and weighted. Differentiable."""
    normed: torch.Tensor = _RmsNorm.apply(x, weight, epsilon)
    return normed


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of x + residual, and x + residual rounded to their type. Differentiable."""
    normed, total = _AddRmsNorm.apply(x, residual, weight, epsilon)
    return normed, total


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return silu(first half) * second half of the last axis, [..., F] for [..., 2 F]. Differentiable."""
    gated: torch.Tensor = _Swiglu.apply(x)
    return gated


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        x = x.contiguous()
        normed, scale_N = torch.empty_like(x), _row_scalars(x)
        _launch_norm(x, x, weight, normed, x, scale_N, epsilon, added=False)
        ctx.save_for_backward(x, weight, scale_N)
        return normed

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight, scale_N = ctx.saved_tensors
        return *_norm_gradients(x, weight, scale_N, grad.contiguous(), None), None


class _AddRmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        normed, total, scale_N = torch.empty_like(x), torch.empty_like(x), _row_scalars(x)
        _launch_norm(x, residual, weight, normed, total, scale_N, epsilon, added=True)
        ctx.save_for_backward(total, weight, scale_N)
        return normed, total

    @staticmethod
    def backward(
        ctx: Any, grad: torch.Tensor, grad_total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        total, weight, scale_N = ctx.saved_tensors
        grad_x, grad_weight = _norm_gradients(total, weight, scale_N, grad.contiguous(), grad_total.contiguous())
        return grad_x, grad_x, grad_weight, None


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        width = x.shape[-1] // 2
        gated = x.new_empty(*x.shape[:-1], width)
        if rows := gated.numel() // width:
            _gate[(rows, triton.cdiv(width, _COLUMNS))](x, gated, width, _COLUMNS)
        ctx.save_for_backward(x)
        return gated

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        width, grad = x.shape[-1] // 2, torch.empty_like(x)
        if rows := grad.numel() // (2 * width):
            grid = rows, triton.cdiv(width, _COLUMNS)
            _gate_backward[grid](x, upstream.contiguous(), grad, width, _COLUMNS)
        return grad


def _row_scalars(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.numel() // x.shape[-1], dtype=torch.float32)


def _launch_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    normed: torch.Tensor,
    total: torch.Tensor,
    scale_N: torch.Tensor,
    epsilon: float,
    *,
    added: bool,
) -> None:
    hidden = x.shape[-1]
    if len(scale_N):
        _norm[(len(scale_N),)](
            x, residual, weight, normed, total, scale_N, hidden, epsilon, added, triton.next_power_of_2(hidden)
        )


def _norm_gradients(
    x: torch.Tensor, weight: torch.Tensor, scale_N: torch.Tensor, grad: torch.Tensor, grad_total: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the norm's input, with what comes from the sum beside it, and of the weight."""
    hidden, rows = x.shape[-1], len(scale_N)
    programs = max(1, min(rows, _PROGRAMS))
    grad_x, shares = torch.empty_like(x), x.new_empty(programs, hidden, dtype=torch.float32)
    added = grad_total is not None
    _norm_backward[(programs,)](
        x,
        weight,
        scale_N,
        grad,
        grad_total if added else grad,  # a pointer that the kernel does not read
        grad_x,
        shares,
        hidden,
        rows,
        programs,
        added,
        triton.next_power_of_2(hidden),
    )
    return grad_x, shares.sum(0).to(weight.dtype)


@triton.jit
def _norm(  # type: ignore[no-untyped-def]
    x, residual, weight, normed, total, scale, width, epsilon, ADDED: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < width
    at = row * width + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    own = tl.rsqrt(tl.sum(value * value, 0) / width + epsilon)
    tl.store(scale + row, own)
    weighted = value * own * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + at, weighted.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(  # type: ignore[no-untyped-def]
    x,
    weight,
    scale,
    grad,
    grad_total,
    grad_x,
    shares,
    width,
    num_rows,
    num_programs,
    ADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    share = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, num_rows, num_programs):
        row = program + start
        there = inside & (row < num_rows)
        at = row * width + column
        upstream = tl.load(grad + at, mask=there, other=0.0).to(tl.float32)
        own = tl.load(scale + row, mask=row < num_rows, other=0.0)
        normed = tl.load(x + at, mask=there, other=0.0).to(tl.float32) * own
        share += upstream * normed
        weighted = upstream * factor
        result = (weighted - normed * (tl.sum(weighted * normed, 0) / width)) * own
        if ADDED:
            result += tl.load(grad_total + at, mask=there, other=0.0).to(tl.float32)
        tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=there)
    tl.store(shares + program * width + column, share, mask=inside)


@triton.jit
def _gate(x, gated, width, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(gated + row * width + column, (gate * tl.sigmoid(gate) * up).to(gated.dtype.element_ty), mask=inside)


@triton.jit
def _gate_backward(x, upstream, grad, width, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    at = row * 2 * width + column
    gate = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + at + width, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(upstream + row * width + column, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    grad_gate = slope * up * share * (1 + gate * (1 - share))
    tl.store(grad + at, grad_gate.to(grad.dtype.element_ty), mask=inside)
    tl.store(grad + at + width, (slope * gate * share).to(grad.dtype.element_ty), mask=inside)
