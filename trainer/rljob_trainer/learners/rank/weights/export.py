"""Weights written as a Hugging Face checkpoint that SGLang and transformers load."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

_SHARD_BYTES = 4 * 2**30
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
"""endings of files that hold or list the original's weights"""


def write(directory: Path, tensors: Iterable[tuple[str, torch.Tensor]], original: Path) -> None:
    """Write the tensors in shards of at most 4 GiB, and copy everything but the weights from the original.

    The type of the first tensor is the model's; a router's bias is fp32 in every model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for file in original.iterdir():
        if file.is_file() and not file.name.endswith(_WEIGHTS):
            shutil.copyfile(file, directory / file.name)
    dtype, shards = _write_shards(directory, tensors)
    _write_index(directory, shards)
    config = json.loads((original / "config.json").read_text())
    config.pop("torch_dtype", None)  # its name before transformers 5
    (directory / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")


def _write_shards(directory: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, dict[str, list[str]]]:
    """Return the data type and the names in each file."""
    shards: dict[str, list[str]] = {}
    pending: dict[str, torch.Tensor] = {}
    dtypes: list[str] = []
    size = 0

    def flush() -> None:
        name = f"model-{len(shards) + 1:05d}.safetensors"
        save_file(pending, directory / name, metadata={"format": "pt"})
        shards[name] = list(pending)
        pending.clear()

    for name, tensor in tensors:
        if size and size + tensor.nbytes > _SHARD_BYTES:
            flush()
            size = 0
        pending[name] = tensor.to("cpu").contiguous()
        size += tensor.nbytes
        dtypes.append(str(tensor.dtype).removeprefix("torch."))
    flush()
    return dtypes[0], shards


def _write_index(directory: Path, shards: dict[str, list[str]]) -> None:
    """Name a single shard as loaders expect it; list several in an index."""
    if len(shards) == 1:
        (directory / next(iter(shards))).rename(directory / "model.safetensors")
        return
    weight_map = {name: file for file, names in shards.items() for name in names}
    total = sum((directory / file).stat().st_size for file in shards)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
