"""Weights of engines in FP8: which matrices of a model are quantised, and what an engine is told of it. Pure.

The layout is that of DeepSeek's and Qwen's FP8 checkpoints: each block of 128 x 128 weights has an fp32 scale, in a
tensor beside the weight. `sync/fp8.py` of the trainer computes both. Linear layers are known by their names: a matrix
with another name, such as a router or an embedding, is left as it is and is on the list that the engine gets.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from rljob_api.errors import Problem
from rljob_api.sections import Placement, Spec
from rljob_api.sizing.model_shape import Shape, engine_obstacles, undivided
from rljob_api.sizing.tensors import Axes, tensors_of

BLOCK: Final = 128
"""rows and columns that share a scale"""
SCALE: Final = "_scale_inv"
"""ending of the name of the tensor with a weight's scales"""
SCALE_BYTES: Final = 4
LINEAR: Final = frozenset(
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")
)
"""last part of the names of linear layers and of experts; w1 to w3 are Mixtral's"""
LAYERS: Final = "model.layers."
OUTPUT: Final = "lm_head"


def is_linear(name: str) -> bool:
    """Return whether a tensor is the weight of a linear layer inside the model's layers."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and name.startswith(LAYERS) and module.rpartition(".")[2] in LINEAR


def is_matrix(name: str, axes: Axes) -> bool:
    """Return whether a tensor is a matrix, which an engine would take for quantised unless it is on the list."""
    return name.endswith(".weight") and len(axes) == 2


def scale_axes(axes: Axes) -> Axes:
    """Return the shape of a matrix's scales; the last blocks may be smaller."""
    return tuple(math.ceil(axis / BLOCK) for axis in axes)


def left_alone(tensors: Mapping[str, Axes]) -> tuple[str, ...]:
    """Return the modules whose matrix is not quantised: the list that an engine gets.

    The output layer is on it, also where it is the embedding.
    """
    plain = (name for name, axes in tensors.items() if is_matrix(name, axes) and not is_linear(name))
    return tuple(dict.fromkeys((*(name.removesuffix(".weight") for name in plain), OUTPUT)))


def quantised(tensors: Iterable[str]) -> tuple[str, ...]:
    """Return the modules whose matrix is quantised."""
    return tuple(name.removesuffix(".weight") for name in tensors if is_linear(name))


def of_model(model: Shape) -> tuple[str, ...]:
    """Return the list for a model."""
    return left_alone(tensors_of(model))


def quantization_config(model: Shape) -> dict[str, Any]:
    """Return the entry of `config.json` by which an engine makes room for quantised weights.

    Source: DeepSeek-V3's and Qwen3-FP8's config.json; SGLang 0.5.17, Fp8Config.from_config.
    """
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": list(of_model(model)),
    }


def linear_parameters(model: Shape) -> int:
    """Return how many weights are quantised."""
    return sum(math.prod(axes) for name, axes in tensors_of(model).items() if is_linear(name))


def blocks(model: Shape) -> int:
    """Return how many blocks, and so scales, they have."""
    return sum(math.prod(scale_axes(axes)) for name, axes in tensors_of(model).items() if is_linear(name))


def problems(model: Shape, spec: Spec) -> Iterator[Problem]:
    """Yield where an engine cannot lay out the blocks of a model of this shape."""
    if spec.rollout.quantization is None:
        return
    given, node = spec.rollout.gpus_per_engine, spec.training.gpus_per_node
    if model.latent:
        rule = "is not supported for models with latent attention: SGLang makes other matrices of theirs"
        yield Problem("spec.rollout.quantization", spec.rollout.quantization, rule, "leave it out")
    elif cut := block_obstacles(model, 1):
        rule = f"needs widths that blocks of {BLOCK} divide, and the model has {' and '.join(cut)}"
        yield Problem("spec.rollout.quantization", spec.rollout.quantization, rule, "leave it out")
    elif not engine_obstacles(model, given):
        colocated = spec.placement is Placement.COLOCATED
        possible = [size for size in range(1, model.heads + 1) if not colocated or node % size == 0]
        fits = [size for size in possible if not engine_obstacles(model, size)]
        found = undivided("spec.rollout.gpusPerEngine", given, partial(block_obstacles, model), fits)
        if found is not None:
            cut = block_obstacles(model, given)
            rule = f"cuts blocks of {BLOCK}, which spec.rollout.quantization scales: {' and '.join(cut)}"
            yield Problem(found.field, given, rule, found.nearest)


def block_obstacles(model: Shape, size: int) -> list[str]:
    """Return what a GPU of an engine with so many of them has, and blocks do not divide.

    SGLang 0.5.17 demands it of every matrix that it fuses or splits (Fp8LinearMethod.validate_block_quant_shapes,
    Fp8MoEMethod.create_fp8_moe_weight_). With fewer key-value heads than GPUs, each has one of them.
    """
    widths = {
        "query columns": model.query // size,
        "key columns": model.key // min(size, model.kv_heads),
        "MLP columns": model.ffn // size,
        "MLP columns of the first layers": model.dense_ffn // size if model.dense_layers else 0,
        "columns of the shared expert": model.shared_ffn // size,
    }
    on_each = f" on each of {size} GPUs" if size > 1 else ""
    return [f"{width} {what}{on_each}" for what, width in widths.items() if width % BLOCK]
