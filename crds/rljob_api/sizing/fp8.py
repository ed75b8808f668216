"""Weights of engines in FP8: each block of 128 x 128 weights has an fp32 scale, in a tensor beside the weight. Pure.

The layout is that of DeepSeek's and Qwen's FP8 checkpoints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rljob_api.sizing.linear import WEIGHT, in_words, widths_on_each
from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.tensors import Axes

BLOCK: Final = 128
"""rows and columns that share a scale"""
SCALE: Final = ".weight_scale_inv"
"""ending of the name of the tensor with a weight's scales"""


def scale_axes(axes: Axes) -> Axes:
    """Return the shape of a matrix's scales; the last blocks may be smaller."""
    return tuple(math.ceil(axis / BLOCK) for axis in axes)


@dataclass(frozen=True, slots=True)
class Fp8:
    """See `quantised.Format`."""

    list_name: str = "modules_to_not_convert"
    unit: str = f"blocks of {BLOCK}"
    formula: str = f"1 for each weight in FP8, and 4 for each block of {BLOCK} x {BLOCK}"

    def config(self, left_alone: Sequence[str]) -> dict[str, Any]:
        """Source: DeepSeek-V3's and Qwen3-FP8's config.json; SGLang 0.5.17, Fp8Config.from_config."""
        return {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            self.list_name: list(left_alone),
        }

    def parts(self, axes: Axes) -> tuple[tuple[str, Axes, str], ...]:
        """Return weights and scales."""
        return (WEIGHT, axes, "float8_e4m3fn"), (SCALE, scale_axes(axes), "float32")

    def misfit(self, axes: Axes) -> str | None:
        """Any matrix has blocks."""
        return None

    def obstacles(self, model: Shape, size: int) -> list[str]:
        """Return what blocks do not divide.

        SGLang 0.5.17 demands it of every matrix that it fuses or splits (Fp8LinearMethod.validate_block_quant_shapes,
        Fp8MoEMethod.create_fp8_moe_weight_).
        """
        widths = widths_on_each(model, size)
        return in_words({what: width for what, width in widths.items() if width % BLOCK}, size)
