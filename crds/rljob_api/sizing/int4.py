"""Weights of engines in INT4: 32 weights of a row have a bf16 scale, eight weights are one int32 word. Pure.

The layout is compressed-tensors' `pack-quantized`, symmetric, as in Kimi-K2-Thinking's checkpoint and slime's:

    q_proj.weight [O, I] ─► q_proj.weight_packed [O, I / 8], q_proj.weight_scale [O, I / 32], q_proj.weight_shape [2]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rljob_api.sizing.linear import in_words, widths_on_each
from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.tensors import Axes

BITS: Final = 4
GROUP: Final = 32
"""weights of a row that share a scale: the smallest group of Marlin's kernels, so that least is lost"""
IN_WORD: Final = 8
"""weights of a row in an int32; the first in the lowest bits"""
PACKED, SCALE, SHAPE = ".weight_packed", ".weight_scale", ".weight_shape"
"""endings of the names of a matrix' tensors; no engine reads the shape, and other readers of the format need it"""
INPUTS, OUTPUTS = 128, 64
"""what must divide the inputs and outputs of a matrix on a GPU (SGLang 0.5.17: verify_marlin_supports_shape)"""
EXPERT_INPUTS: Final = 64
"""what must divide the inputs of an expert's second matrix on a GPU (check_moe_marlin_supports_layer)"""


@dataclass(frozen=True, slots=True)
class Int4:
    """See `quantised.Format`."""

    list_name: str = "ignore"
    unit: str = f"groups of {GROUP} in tiles of {INPUTS} x {OUTPUTS}"
    formula: str = f"1/2 for each weight in INT4, and 2 for each group of {GROUP}"

    def config(self, left_alone: Sequence[str]) -> dict[str, Any]:
        """Source: Kimi-K2-Thinking's config.json; SGLang 0.5.17, CompressedTensorsConfig.from_config."""
        weights = {
            "num_bits": BITS,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": GROUP,
            "dynamic": False,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
            "kv_cache_scheme": None,
            self.list_name: list(left_alone),
        }

    def parts(self, axes: Axes) -> tuple[tuple[str, Axes, str], ...]:
        """Return words, scales, and the shape. The last axis is a multiple of GROUP."""
        *rows, columns = axes
        return (
            (PACKED, (*rows, columns // IN_WORD), "int32"),
            (SCALE, (*rows, columns // GROUP), "bfloat16"),
            (SHAPE, (len(axes),), "int32"),
        )

    def misfit(self, axes: Axes) -> str | None:
        """Rows consist of groups."""
        *rows, columns = axes
        if columns % GROUP == 0:
            return None
        near = (*rows, max(1, round(columns / GROUP)) * GROUP)
        return f"has rows that groups of {GROUP} do not divide; nearest valid: {near}"

    def obstacles(self, model: Shape, size: int) -> list[str]:
        """Return what the tiles of SGLang's Marlin kernels do not divide; groups and words divide a tile."""
        widths = {"hidden columns": model.hidden, **widths_on_each(model, size)}
        fused = "query, key and value columns"
        tiles = {fused: OUTPUTS, "MLP columns": EXPERT_INPUTS if model.experts else INPUTS}
        if model.latent:
            tiles["query columns"] = OUTPUTS
        else:
            widths[fused] = widths["query columns"] + 2 * widths.pop("key columns")
        return in_words({what: width for what, width in widths.items() if width % tiles.get(what, INPUTS)}, size)
