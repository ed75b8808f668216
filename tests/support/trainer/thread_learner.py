"""A learner for tests of weight sync: tensors in this process, sent from a thread."""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file

from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.quantised import Quantised
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.learners.rank.rendezvous.store import open_store
from rljob_trainer.learners.rank.weights.weight_files import is_further
from rljob_trainer.sync.layout import Sharding, TensorSpec
from rljob_trainer.sync.rank.delta import DeltaWriter
from rljob_trainer.sync.rank.digest import cpu_digest
from rljob_trainer.sync.rank.quantised.encoding import encoding
from rljob_trainer.sync.rank.sender import FILE_NAME, SendError, WeightSender, specs_of
from rljob_trainer.sync.rank_calls import Backend
from rljob_trainer.sync.transport import TransferError

T = TypeVar("T")
Tensors = dict[str, torch.Tensor]
HOST = "127.0.0.1"


class ThreadLearner:
    """Holds the weights of a checkpoint; `damage` changes what is sent, but not what is digested.

    `how` the matrices are quantised for engines; None: they are not.
    """

    def __init__(self, checkpoint: Path, key_value_heads: int, how: Quantised | None = None) -> None:
        model, held = shape(json.loads((checkpoint / "config.json").read_text())), load_file(checkpoint / FILE_NAME)
        self.tensors: Tensors = {name: t.clone() for name, t in held.items() if not is_further(name, model)}
        self.damage: Callable[[Tensors], Tensors] = lambda tensors: tensors
        self.offered: Callable[[WeightFiles], None] = lambda files: None
        """called when files have been offered"""
        self._encoding = encoding(how)
        tied = "lm_head.weight" not in self.tensors
        self._deltas = DeltaWriter(self.specs)
        self._sender = WeightSender(self.specs, Sharding(1, key_value_heads, tied), cpu_digest)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return self._encoding.specs(specs_of(self.tensors.items()))

    def published(self, tensors: Tensors) -> Iterable[tuple[str, torch.Tensor]]:
        """Return tensors as engines get them."""
        return self._encoding.tensors(tensors.items())

    def take_a_step(self) -> None:
        """Change every weight."""
        for tensor in self.tensors.values():
            tensor.mul_(1.001)

    async def rendezvous(self) -> tuple[str, int]:
        return HOST, open_store(HOST)

    async def connect(
        self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float
    ) -> None:
        await _in_thread(self._sender.connect, address, port, world_size, name, backend, timeout_s)

    async def send(self, bucket_bytes: int) -> Sequence[Mapping[str, str]]:
        digests = self._sender.digests(self.published(self.tensors))
        await _in_thread(self._sender.send, self.published(self.damage(self.tensors)), bucket_bytes)
        return digests

    async def write(self, directory: Path) -> None:
        await _in_thread(self._sender.write, self.published(self.damage(self.tensors)), directory)

    async def written(self) -> Sequence[Mapping[str, str]]:
        return self._sender.digests(self.published(self.tensors))

    async def offer(self, directory: Path) -> WeightFiles:
        export = self._sender.digested(self.published(self.damage(self.tensors)))
        files = await _in_thread(self._deltas.offer, export, directory)
        self.offered(files)
        return files

    async def write_whole(self, files: WeightFiles) -> None:
        await _in_thread(self._deltas.write_whole, files)

    async def disconnect(self) -> None:
        await _in_thread(self._sender.disconnect)


async def _in_thread(work: Callable[..., T], *arguments: object) -> T:
    try:
        return await asyncio.to_thread(work, *arguments)
    except (SendError, RuntimeError) as error:
        raise TransferError(str(error)) from error
