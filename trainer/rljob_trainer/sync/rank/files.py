"""The weights of a checkpoint as what engines must hold, where there is no learner: `spec.debug.rolloutOnly`.

Takes the place of a learner rank in its Ray actor. Engines read the checkpoint's own files, and are verified against
them tensor by tensor, by the same publisher as ever.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.quantised import Quantised
from rljob_trainer.learners.rank.weights.weight_files import DTYPES, NOT_LOADED, dtype_of, is_further, weight_files
from rljob_trainer.sync.layout import Sharding, TensorSpec
from rljob_trainer.sync.rank.digest import digest_on
from rljob_trainer.sync.rank.quantised.encoding import encoding
from rljob_trainer.sync.rank.sender import WeightSender
from rljob_trainer.sync.rank_calls import Digests, WritingRank


class CheckpointFiles(WritingRank):
    """All safetensors files of a Hugging Face checkpoint, in the type that engines serve."""

    def __init__(
        self,
        checkpoint_dir: Path,
        precision: str,
        device: str,
        num_threads: int,
        sharding: Sharding,
        rank: int,
        world_size: int,
        master_address: str,
        master_port: int,
        how: Quantised | None = None,
    ) -> None:
        """Read the names; `how` the matrices are quantised for engines, None: they are not."""
        torch.set_num_threads(num_threads)
        self._paths = weight_files(checkpoint_dir)
        self._model = shape(json.loads((checkpoint_dir / "config.json").read_text()))
        self._dtype = DTYPES[precision]
        self._device = device
        self._encoding = encoding(how)
        self._writes = how is not None
        self.specs = self._encoding.specs(self._specs())
        self._sender = WeightSender(self.specs, sharding, digest_on(device))

    def weight_specs(self) -> tuple[TensorSpec, ...]:
        """Return names, shapes and types of what engines must hold."""
        return self.specs

    def write(self, directory: Path) -> None:
        """Write the weights if engines have them quantised; otherwise nothing: the files are there."""
        if self._writes:
            self._sender.write(self._published(), directory)

    def written(self) -> Digests:
        """Return the digests of what engines that have read the files must hold."""
        return self._sender.written() if self._writes else self._sender.digests(self._published())

    def _published(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._encoding.tensors(self._tensors())

    def _specs(self) -> Iterator[TensorSpec]:
        for path in self._paths:
            with safe_open(path, "pt") as file:
                for name in self._loaded(file.keys()):
                    dtype = str(dtype_of(name, self._dtype)).removeprefix("torch.")
                    yield TensorSpec(name, tuple(file.get_slice(name).get_shape()), dtype)

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path in self._paths:
            with safe_open(path, "pt") as file:
                for name in self._loaded(file.keys()):
                    yield name, file.get_tensor(name).to(self._device, dtype_of(name, self._dtype))

    def _loaded(self, names: list[str]) -> list[str]:
        return [name for name in names if not name.endswith(NOT_LOADED) and not is_further(name, self._model)]
