"""The weight files of a Hugging Face checkpoint, and what in them counts."""

import json
from pathlib import Path

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
NOT_LOADED = ".rotary_emb.inv_freq"
"""name ending of tensors that old checkpoints hold and engines compute"""


def weight_files(directory: Path) -> list[Path]:
    """Return the files that engines read: those of the index where there is one, else all."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(directory.glob("*.safetensors"))
    return [directory / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
