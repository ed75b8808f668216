"""Triton kernels that make queries, keys and values of a packed projection: q/k norm and rotary embedding in one pass.

PyTorch needs a dozen kernels for this in every layer, each of which reads and writes all queries; here each element is
read once and written once, and the backward pass computes the norm again instead of storing it. Sums are in fp32.
Without a GPU the kernels run in Triton's interpreter (`TRITON_INTERPRET=1`), which is how they are tested.

Axes: N tokens, G key-value heads of this rank, H query heads for each of them, D head size. The projection has
Megatron's order: for each of G its H query heads, its key and its value.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

_TOKENS = 16
"""tokens of one program; it handles one key-value head with its queries"""


def query_key_value(
    projected: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    *,
    groups: int,
    head_dim: int,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [N, G * H, D] and keys [N, G, D], normed and turned, and values [N, G, D].

    `projected` is [N, G * (H + 2) * D]; `cos` and `sin` are fp32 [N, 1, D / 2]. The weights of RMSNorm are [D];
    None for both: no norm. The norm's result is not rounded before it is turned. Differentiable.
    """
    heads = projected.shape[-1] // (groups * head_dim) - 2
    shape = _Shape(groups, heads, head_dim, epsilon)
    queries, keys, values = _QueryKeyValue.apply(projected, cos, sin, q_weight, k_weight, shape)
    return queries, keys, values


@dataclass(frozen=True, slots=True)
class _Shape:
    """What both passes know of the heads."""

    groups: int
    heads: int
    """query heads of a group"""
    head_dim: int
    epsilon: float

    def grid(self, tokens: int) -> tuple[int, int]:
        return triton.cdiv(tokens, _TOKENS), self.groups

    def constants(self, normed: bool) -> dict[str, Any]:
        """Return what the kernels are compiled for."""
        return {
            "GROUPS": self.groups,
            "HEADS": self.heads,
            "HALF": self.head_dim // 2,
            "WIDTH": triton.next_power_of_2(self.head_dim // 2),
            "TOKENS": _TOKENS,
            "NORMED": normed,
        }


class _QueryKeyValue(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        shape: _Shape,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        projected, cos, sin = projected.contiguous(), cos.contiguous(), sin.contiguous()
        tokens, groups, head_dim = len(projected), shape.groups, shape.head_dim
        q = projected.new_empty(tokens, groups * shape.heads, head_dim)
        k, v = (projected.new_empty(tokens, groups, head_dim) for _ in range(2))
        normed = q_weight is not None
        weights = (q_weight, k_weight) if normed else (cos, cos)  # pointers that no kernel reads
        _forward[shape.grid(tokens)](
            projected, cos, sin, *weights, q, k, v, tokens, shape.epsilon, **shape.constants(normed)
        )
        ctx.save_for_backward(projected, cos, sin, q_weight, k_weight)
        ctx.shape = shape
        return q, k, v

    @staticmethod
    def backward(ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor, grad_v: torch.Tensor) -> tuple[Any, ...]:
        projected, cos, sin, q_weight, k_weight = ctx.saved_tensors
        shape: _Shape = ctx.shape
        grads = (each.contiguous() for each in (grad_q, grad_k, grad_v))
        grad = torch.empty_like(projected)
        normed = q_weight is not None
        blocks, groups = shape.grid(len(projected))
        # every program writes its own share of the weights' gradients: their sum does not depend on the order
        shares = projected.new_empty(2, blocks * groups, shape.head_dim, dtype=torch.float32)
        weights = (q_weight, k_weight) if normed else (cos, cos)
        _backward[blocks, groups](
            projected,
            cos,
            sin,
            *weights,
            *grads,
            grad,
            shares[0],
            shares[1],
            len(projected),
            shape.epsilon,
            **shape.constants(normed),
        )
        if not normed:
            return grad, None, None, None, None, None
        of_q, of_k = shares.sum(1)
        return grad, None, None, of_q.to(q_weight.dtype), of_k.to(k_weight.dtype), None


@triton.jit
def _block(cos, sin, num_tokens, HALF: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a program's tokens [tokens, 1] and lanes [1, lanes], which of them there are, and their angles."""
    token = (tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS))[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    there = (token < num_tokens) & (lane < HALF)
    c = tl.load(cos + token * HALF + lane, mask=there, other=0.0)
    s = tl.load(sin + token * HALF + lane, mask=there, other=0.0)
    return token, lane, there, c, s


@triton.jit
def _scale(a, b, epsilon, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return 1 / RMS [tokens, 1] of vectors with the halves a and b [tokens, lanes]."""
    return tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + epsilon)[:, None]


@triton.jit
def _weights(weight, HALF: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the halves of RMSNorm's weight, [1, lanes] each."""
    lane = tl.arange(0, WIDTH)[None, :]
    first = tl.load(weight + lane, mask=lane < HALF, other=0.0).to(tl.float32)
    return first, tl.load(weight + HALF + lane, mask=lane < HALF, other=0.0).to(tl.float32)


@triton.jit
def _forward_head(  # type: ignore[no-untyped-def]
    source, target, weight, c, s, there, epsilon, HALF: tl.constexpr, WIDTH: tl.constexpr, NORMED: tl.constexpr
):
    """Norm and turn one head of a block of tokens."""
    a = tl.load(source, mask=there, other=0.0).to(tl.float32)
    b = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
    if NORMED:
        scale = _scale(a, b, epsilon, HALF)
        weight_a, weight_b = _weights(weight, HALF, WIDTH)
        a *= scale * weight_a
        b *= scale * weight_b
    tl.store(target, (a * c - b * s).to(target.dtype.element_ty), mask=there)
    tl.store(target + HALF, (b * c + a * s).to(target.dtype.element_ty), mask=there)


@triton.jit
def _backward_head(  # type: ignore[no-untyped-def]
    source,
    upstream,
    target,
    weight,
    c,
    s,
    there,
    epsilon,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Turn one head's gradient back and take it through the norm; return the halves of the weight's, [lanes] each."""
    turned_a = tl.load(upstream, mask=there, other=0.0).to(tl.float32)
    turned_b = tl.load(upstream + HALF, mask=there, other=0.0).to(tl.float32)
    grad_a = turned_a * c + turned_b * s
    grad_b = turned_b * c - turned_a * s
    share_a = tl.zeros((WIDTH,), tl.float32)
    share_b = tl.zeros((WIDTH,), tl.float32)
    if NORMED:
        a = tl.load(source, mask=there, other=0.0).to(tl.float32)
        b = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
        scale = _scale(a, b, epsilon, HALF)
        a *= scale
        b *= scale
        share_a = tl.sum(grad_a * a, 0)
        share_b = tl.sum(grad_b * b, 0)
        weight_a, weight_b = _weights(weight, HALF, WIDTH)
        grad_a *= weight_a
        grad_b *= weight_b
        along = ((tl.sum(grad_a * a, 1) + tl.sum(grad_b * b, 1)) / (2 * HALF))[:, None]
        grad_a = (grad_a - a * along) * scale
        grad_b = (grad_b - b * along) * scale
    tl.store(target, grad_a.to(target.dtype.element_ty), mask=there)
    tl.store(target + HALF, grad_b.to(target.dtype.element_ty), mask=there)
    return share_a, share_b


@triton.jit
def _copy(source, target, there, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(target, tl.load(source, mask=there), mask=there)
    tl.store(target + HALF, tl.load(source + HALF, mask=there), mask=there)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    projected,
    cos,
    sin,
    q_weight,
    k_weight,
    q,
    k,
    v,
    num_tokens,
    epsilon,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMED: tl.constexpr,
):
    token, lane, there, c, s = _block(cos, sin, num_tokens, HALF, WIDTH, TOKENS)
    row = token * GROUPS + tl.program_id(1)
    source = projected + row * ((HEADS + 2) * 2 * HALF) + lane
    own_q = q + row * (HEADS * 2 * HALF) + lane
    for head in range(HEADS):
        at = head * 2 * HALF
        _forward_head(source + at, own_q + at, q_weight, c, s, there, epsilon, HALF, WIDTH, NORMED)
    own = row * (2 * HALF) + lane
    _forward_head(source + HEADS * 2 * HALF, k + own, k_weight, c, s, there, epsilon, HALF, WIDTH, NORMED)
    _copy(source + (HEADS + 1) * 2 * HALF, v + own, there, HALF)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    projected,
    cos,
    sin,
    q_weight,
    k_weight,
    grad_q,
    grad_k,
    grad_v,
    grad,
    q_shares,
    k_shares,
    num_tokens,
    epsilon,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    NORMED: tl.constexpr,
):
    token, lane, there, c, s = _block(cos, sin, num_tokens, HALF, WIDTH, TOKENS)
    row = token * GROUPS + tl.program_id(1)
    first = row * ((HEADS + 2) * 2 * HALF) + lane
    own_q = grad_q + row * (HEADS * 2 * HALF) + lane
    own = row * (2 * HALF) + lane
    share_a = tl.zeros((WIDTH,), tl.float32)
    share_b = tl.zeros((WIDTH,), tl.float32)
    for head in range(HEADS):
        at = head * 2 * HALF
        from_a, from_b = _backward_head(
            projected + first + at, own_q + at, grad + first + at, q_weight, c, s, there, epsilon, HALF, WIDTH, NORMED
        )
        share_a += from_a
        share_b += from_b
    at = first + HEADS * 2 * HALF
    key_a, key_b = _backward_head(
        projected + at, grad_k + own, grad + at, k_weight, c, s, there, epsilon, HALF, WIDTH, NORMED
    )
    _copy(grad_v + own, grad + first + (HEADS + 1) * 2 * HALF, there, HALF)
    if NORMED:
        element = tl.arange(0, WIDTH)
        share = (tl.program_id(0).to(tl.int64) * GROUPS + tl.program_id(1)) * (2 * HALF) + element
        tl.store(q_shares + share, share_a, mask=element < HALF)
        tl.store(q_shares + share + HALF, share_b, mask=element < HALF)
        tl.store(k_shares + share, key_a, mask=element < HALF)
        tl.store(k_shares + share + HALF, key_b, mask=element < HALF)
