"""Which matrices of a model are quantised for engines, and which are left as they are. Pure.

Linear layers are known by their names: a matrix with another name, such as a router or an embedding, is left as it is
and is on the list that the engine gets.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rljob_api.sizing.latent import Latent
from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.tensors import Axes, tensors_of

WEIGHT: Final = ".weight"
LINEAR: Final = frozenset(
    ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3")
)
"""last part of the names of linear layers and of experts; w1 to w3 are Mixtral's. Those before and behind latents
(`kv_b_proj`, ...) are not among them: SGLang makes other matrices of theirs, and they are a small part of a model"""
LAYERS: Final = "model.layers."
OUTPUT: Final = "lm_head"


def is_linear(name: str) -> bool:
    """Return whether a tensor is the weight of a linear layer inside the model's layers."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and name.startswith(LAYERS) and module.rpartition(".")[2] in LINEAR


def is_matrix(name: str, axes: Axes) -> bool:
    """Return whether a tensor is a matrix, which an engine would take for quantised unless it is on the list."""
    return name.endswith(WEIGHT) and len(axes) == 2


def left_alone(tensors: Mapping[str, Axes]) -> tuple[str, ...]:
    """Return the modules whose matrix is not quantised: the list that an engine gets.

    The output layer is on it, also where it is the embedding.
    """
    plain = (name for name, axes in tensors.items() if is_matrix(name, axes) and not is_linear(name))
    return tuple(dict.fromkeys((*(name.removesuffix(WEIGHT) for name in plain), OUTPUT)))


def quantised(tensors: Iterable[str]) -> tuple[str, ...]:
    """Return the modules whose matrix is quantised."""
    return tuple(name.removesuffix(WEIGHT) for name in tensors if is_linear(name))


def matrices(model: Shape) -> dict[str, Axes]:
    """Return the shapes of the matrices of a model that are quantised, by their names."""
    return {name: axes for name, axes in tensors_of(model).items() if is_linear(name)}


def widths_on_each(model: Shape, size: int) -> dict[str, int]:
    """Return the widths of the matrices that an engine of this number of GPUs splits, on each of them.

    With fewer key-value heads than GPUs, each has one of them.
    """
    return {
        **(_of_latents(model.latent, size) if model.latent else _of_heads(model, size)),
        "MLP columns": model.ffn // size,
        "MLP columns of the first layers": model.dense_ffn // size if model.dense_layers else 0,
        "columns of the shared expert": model.shared_ffn // size,
    }


def _of_heads(model: Shape, size: int) -> dict[str, int]:
    return {"query columns": model.query // size, "key columns": model.key // min(size, model.kv_heads)}


def _of_latents(latent: Latent, size: int) -> dict[str, int]:
    """Return those of the two matrices of latent attention that are quantised, see `LINEAR`."""
    queries = {} if latent.query_rank else {"query columns": latent.heads * latent.head // size}
    return {**queries, "value columns": latent.heads * latent.value // size}


def in_words(widths: Mapping[str, int], size: int) -> list[str]:
    """Return widths in words: `192 MLP columns on each of 4 GPUs`."""
    on_each = f" on each of {size} GPUs" if size > 1 else ""
    return [f"{width} {what}{on_each}" for what, width in widths.items()]
