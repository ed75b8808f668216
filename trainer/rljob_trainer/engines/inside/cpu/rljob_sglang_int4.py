"""INT4 matrices in PyTorch, for SGLang on CPU.

SGLang 0.5.17 multiplies them by Marlin's kernels, on GPUs alone. Here each matrix is expanded before it is multiplied.
Between loads weights lie as for these kernels (`rljob_sglang_packed.py`), so that a CPU tries what a GPU does. Goes
when SGLang publishes CPU kernels.

Axes: O outputs, I inputs, E experts; G groups of a row.
"""

from types import SimpleNamespace
from typing import Any

import rljob_sglang_packed
import torch
from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

ZERO = 8
"""the number that stands for 0"""


def is_supported(config: Any, min_capability: int, error: bool = True) -> bool:
    """Stand in for `CompressedTensorsConfig._check_scheme_supported`, which asks a GPU."""
    return True


def linear(scheme: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Stand in for `CompressedTensorsWNA16.apply_weights`: x @ weight.T + bias."""
    return torch.nn.functional.linear(x, Expanded(layer, "", x.dtype)[None], bias)


def experts(scheme: Any, layer: Any, dispatch_output: Any) -> StandardCombineInput:
    """Stand in for `CompressedTensorsWNA16MoE.apply_weights`, by SGLang's code for experts that are not quantised."""
    x = dispatch_output.hidden_states
    plain = SimpleNamespace(
        num_experts=layer.num_experts,
        w13_weight=Expanded(layer, "w13_", x.dtype),
        w2_weight=Expanded(layer, "w2_", x.dtype),
    )
    done = moe_forward_native(plain, x, dispatch_output.topk_output, scheme.moe_runner_config)
    return StandardCombineInput(hidden_states=done)


class Expanded:
    """The matrix of a layer, or those of its experts; each is expanded when it is asked for."""

    def __init__(self, layer: Any, beginning: str, dtype: torch.dtype) -> None:
        found = layer.rljob_matrices.parts
        self._parts = [found[beginning + name] for name in (rljob_sglang_packed.PACKED, rljob_sglang_packed.SCALE)]
        self._dtype = dtype

    def __getitem__(self, expert: int | None) -> torch.Tensor:
        of_it = [part.kernel.data if expert is None else part.kernel.data[expert] for part in self._parts]
        words, scale = (part.open(tensor) for part, tensor in zip(self._parts, of_it, strict=True))
        turned = rljob_sglang_packed.as_it_is if expert is None else rljob_sglang_packed.transposed
        return expanded(turned(words), turned(scale), self._dtype)


def expanded(words_OI: torch.Tensor, scale_OG: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weights that words and the scales of their groups stand for."""
    rows, groups = scale_OG.shape
    numbers_OGg = rljob_sglang_packed.numbers(words_OI).view(rows, groups, -1).float() - ZERO
    return (numbers_OGg * scale_OG.float()[:, :, None]).view(rows, -1).to(dtype)
