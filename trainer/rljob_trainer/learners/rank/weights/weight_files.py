"""The weight files of a Hugging Face checkpoint, and what in them counts."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from rljob_api.sizing.model_shape import Shape
from rljob_api.sizing.tensors import is_trained

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NOT_LOADED = ".rotary_emb.inv_freq"
"""name ending of tensors that old checkpoints hold and engines compute"""
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def weight_files(directory: Path) -> list[Path]:
    """Return the files that engines read: those of the index where there is one, else all."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(directory.glob("*.safetensors"))
    return [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def dtype_of(name: str, weights: torch.dtype) -> torch.dtype:
    """Return the type in which learner and engines hold a tensor, when weights are of type `weights`."""
    return weights if is_trained(name) else torch.float32


def is_further(name: str, model: Shape) -> bool:
    """Return whether a tensor is of a layer after the model's last one, which neither learner nor engines have."""
    layer = _LAYER.match(name)
    return layer is not None and model.layers <= int(layer[1]) < model.layers + model.further_layers


def further_tensors(directory: Path, model: Shape) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of such layers: an export keeps them as they were."""
    for path in weight_files(directory) if model.further_layers else []:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if is_further(name, model)]  # noqa: SIM118  # no mapping
            yield from ((name, file.get_tensor(name)) for name in names)
