"""Rotary position embedding, from the Hugging Face configuration.

Megatron's own packed variant loops over the sequences in Python, for queries and for keys, in every layer: by far the
largest overhead of a step. Here the angles of a micro-batch are looked up once, from each token's position.
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rljob_api.sizing.families import BY_MODEL_TYPE, GLOBAL, LOCAL, rope_type


class Rope:
    """Cosines and sines of positions."""

    def __init__(self, hf_config: Any, head_dim: int, device: torch.device) -> None:
        family = BY_MODEL_TYPE[hf_config.model_type]
        self.pairs = family.rope_pairs and getattr(hf_config, "rope_interleave", True)
        """whether neighbouring numbers of a head are turned together; else those of the two halves of what is turned"""
        differ = family.local_layers
        self._usual = _waves(hf_config, head_dim, GLOBAL if differ else None, device)
        self._local = _waves(hf_config, head_dim, LOCAL, device) if differ else None

    def angles(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines [N, 1, half of what is turned of a head] in fp32."""
        return self._usual.angles(positions_N)

    def local_angles(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return those of layers with a window; None: the family has no such layers."""
        return self._local.angles(positions_N) if self._local else None


@dataclass(frozen=True, slots=True)
class _Waves:
    frequencies: torch.Tensor
    scale: float

    def angles(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = (positions_N.float()[:, None] * self.frequencies)[:, None]
        return angles.cos() * self.scale, angles.sin() * self.scale


def _waves(hf_config: Any, head_dim: int, layers: str | None, device: torch.device) -> _Waves:
    """Return those of layers of this kind; None: all layers have the same."""
    settings = hf_config.rope_parameters if layers is None else hf_config.rope_parameters[layers]
    if (kind := rope_type({"rope_parameters": settings})) == "default":
        part = settings["partial_rotary_factor"] if BY_MODEL_TYPE[hf_config.model_type].rope_part else 1.0
        turned = int(head_dim * part)
        exponents = torch.arange(0, turned, 2, dtype=torch.int64).float() / turned
        frequencies, scale = 1.0 / settings["rope_theta"] ** exponents, 1.0
    else:
        named = {} if layers is None else {"layer_type": layers}
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](hf_config, torch.device("cpu"), **named)
    return _Waves(frequencies.to(device=device, dtype=torch.float32), scale)


def rotate(x_N_H_D: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return queries or keys turned by their positions' angles: in fp32, like the engines, then back.

    What has no angle stays as it is.
    """
    return _Rotation.apply(x_N_H_D, cos, sin)


def rotate_pairs(x_N_H_D: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return the same where neighbouring numbers are turned together."""
    turned, kept = x_N_H_D.split([2 * cos.shape[-1], x_N_H_D.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    halves = turned.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    pairs = rotate(halves, cos, sin).unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return torch.cat([pairs, kept], dim=-1)


class _Rotation(torch.autograd.Function):
    """Turning back is the gradient of turning; written out, autograd would copy the two halves several times."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, sin, -1), None, None


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, direction: int) -> torch.Tensor:
    """Return (a cos - b sin, b cos + a sin) for the halves a and b of the last axis, as far as there are angles."""
    out, turned = torch.empty(x.shape, dtype=torch.float32, device=x.device), 2 * cos.shape[-1]
    a, b = x[..., :turned].float().chunk(2, dim=-1)
    out_a, out_b = out[..., :turned].chunk(2, dim=-1)
    if turned < x.shape[-1]:
        out[..., turned:] = x[..., turned:]
    torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-direction)
    torch.mul(b, cos, out=out_b).addcmul_(a, sin, value=direction)
    return out.to(x.dtype)
