"""Rotary position embedding, from the Hugging Face configuration.

Megatron's own packed variant loops over the sequences in Python, for queries and for keys, in every layer: by far the
largest overhead of a step. Here the angles of a micro-batch are looked up once, from each token's position.
"""

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_STATIC = ("llama3", "linear", "yarn")
"""kinds whose frequencies do not depend on the length of the sequence at hand"""


def supported_ropes() -> tuple[str, ...]:
    """Return the values of `rope_type` that we know."""
    return ("default", *_STATIC)


def rope_type(hf_config: Any) -> str:
    """Return the kind of scaling; transformers 5 gathers it in `rope_parameters`."""
    return str(hf_config.rope_parameters.get("rope_type", "default"))


class Rope:
    """Cosines and sines of positions."""

    def __init__(self, hf_config: Any, head_dim: int, device: torch.device) -> None:
        if rope_type(hf_config) == "default":
            exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
            frequencies, self._scale = 1.0 / hf_config.rope_parameters["rope_theta"] ** exponents, 1.0
        else:
            frequencies, self._scale = ROPE_INIT_FUNCTIONS[rope_type(hf_config)](hf_config, torch.device("cpu"))
        self._frequencies = frequencies.to(device=device, dtype=torch.float32)

    def angles(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines [N, 1, head_dim / 2] in fp32."""
        angles = (positions_N.float()[:, None] * self._frequencies)[:, None]
        return angles.cos() * self._scale, angles.sin() * self._scale


def rotate(x_N_H_D: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return queries or keys turned by their positions' angles: in fp32, like the engines, then back."""
    return _Rotation.apply(x_N_H_D, cos, sin)


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
    """Return (a cos - b sin, b cos + a sin) for the halves a and b of the last axis."""
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    a, b = x.float().chunk(2, dim=-1)
    out_a, out_b = out.chunk(2, dim=-1)
    torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-direction)
    torch.mul(b, cos, out=out_b).addcmul_(a, sin, value=direction)
    return out.to(x.dtype)
