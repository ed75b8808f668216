"""Block-wise FP8 matrices in PyTorch, for SGLang on CPU.

SGLang 0.5.17 multiplies them on a CPU by kernels for AMX, which are not published, and packs the weights for these
after each load. Here weights stay as they were loaded, and each matrix is expanded before it is multiplied. Activations
are not quantised, as in SGLang's own kernels for AMX. Goes when SGLang publishes CPU kernels.

Axes: O outputs, I inputs, E experts.
"""

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

BLOCK = 128


def as_loaded(method: Any, layer: torch.nn.Module) -> None:
    """Stand in for `process_weights_after_loading_block_quant`: change nothing."""


def linear(method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Stand in for `Fp8LinearMethod.apply`: x @ weight.T + bias."""
    return torch.nn.functional.linear(x, expanded(layer.weight, layer.weight_scale_inv, x.dtype), bias)


def experts(method: Any, layer: Any, dispatch_output: Any) -> StandardCombineInput:
    """Stand in for `Fp8MoEMethod.apply`, by SGLang's own code for experts that are not quantised."""
    x, settings = dispatch_output.hidden_states, method.moe_runner_config
    plain = SimpleNamespace(
        num_experts=layer.num_experts,
        w13_weight=Expanded(layer.w13_weight, layer.w13_weight_scale_inv, x.dtype),
        w2_weight=Expanded(layer.w2_weight, layer.w2_weight_scale_inv, x.dtype),
    )
    return StandardCombineInput(hidden_states=moe_forward_native(plain, x, dispatch_output.topk_output, settings))


class Expanded:
    """The matrices of a layer's experts; each is expanded when it is asked for."""

    def __init__(self, weight_EOI: torch.Tensor, scale_EOI: torch.Tensor, dtype: torch.dtype) -> None:
        self._weight_EOI, self._scale_EOI, self._dtype = weight_EOI, scale_EOI, dtype

    def __getitem__(self, expert: int) -> torch.Tensor:
        return expanded(self._weight_EOI[expert], self._scale_EOI[expert], self._dtype)


def expanded(weight_OI: torch.Tensor, scale_OI: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights that FP8 and the scales of its blocks stand for; the last blocks may be smaller."""
    rows, columns = weight_OI.shape
    scales_OI = scale_OI.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    return (weight_OI.float() * scales_OI).to(dtype)
