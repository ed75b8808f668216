"""A learner rank that can also publish: what runs inside a learner's Ray actor.

Exporting full tensors is collective, so every rank takes part in every publication; rank 0 sends.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from rljob_api.sizing.quantised import Quantised
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.sync.layout import Sharding, TensorSpec
from rljob_trainer.sync.rank.delta import DeltaWriter
from rljob_trainer.sync.rank.digest import digest_on
from rljob_trainer.sync.rank.quantised.encoding import encoding
from rljob_trainer.sync.rank.sender import Named, SendError, WeightSender, checked, specs_of
from rljob_trainer.sync.rank.sharing import SharedMemory, Sharing
from rljob_trainer.sync.rank_calls import Backend, Digests, SendingRank

T = TypeVar("T")


class PublishingRank(LearnerRank, SendingRank):
    """Adds the sending of weights to a learner rank."""

    def __init__(
        self,
        config: LearnerConfig,
        rank: int,
        world_size: int,
        master_address: str,
        master_port: int,
        sharding: Sharding,
        how: Quantised | None = None,
    ) -> None:
        """Load the model, and announce its tensors.

        `how` the matrices are quantised for engines; None: engines have them in the learner's type. Raises LayoutError
        if that does not fit the model.
        """
        super().__init__(config, rank, world_size, master_address, master_port)
        self._encoding = encoding(how)
        specs = self._encoding.specs(specs_of(self.export()))
        self._on = config.device
        self._sender = WeightSender(specs, sharding, digest_on(config.device)) if rank == 0 else None
        self._deltas: DeltaWriter | None = None
        self._memory: SharedMemory | None = None
        self._sharing: Sharing | None = None
        self.specs = specs
        """names, shapes and types of what is published, in order"""

    def weight_specs(self) -> tuple[TensorSpec, ...]:
        """Return names, shapes and types of what is published, in order."""
        return self.specs

    def connect(self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float) -> None:
        """Meet the engines; only rank 0 does."""
        if self._sender is not None:
            self._sender.connect(address, port, world_size, name, backend, timeout_s)

    def send(self, bucket_bytes: int) -> Digests | None:
        """Broadcast the weights; rank 0 returns the digests of what engines must hold now."""
        return self._with_export(lambda sender, tensors: sender.send(tensors, bucket_bytes))

    def write(self, directory: Path) -> None:
        """Write the weights for engines to read."""
        self._with_export(lambda sender, tensors: sender.write(tensors, directory))

    def written(self) -> Digests | None:
        """Rank 0 returns the digests of what engines that have read the weights must hold."""
        return None if self._sender is None else self._sender.written()

    def offer(self, directory: Path) -> WeightFiles | None:
        """Rank 0 writes what has changed since its last offer, and returns what it wrote; `written` as ever."""
        return self._with_export(
            lambda sender, tensors: self._delta_writer().offer(sender.digested(tensors), directory)
        )

    def write_whole(self, files: WeightFiles) -> None:
        """Rank 0 writes the weights of its last offer as a whole, unless it has."""
        if self._sender is not None:
            self._delta_writer().write_whole(files)

    def share(self, index: int, bucket_bytes: int) -> str:
        """Copy a bucket of the weights into memory that an engine on this slot can map; return its handle.

        Index 0 begins a publication, and ends one that was not finished.
        """
        if index == 0:
            if self._sharing is not None:
                self._sharing.abandon()
            memory = self._memory = self._memory or SharedMemory(self.specs, bucket_bytes, torch.device(self._on))
            digesting = self._sender.digesting() if self._sender else None
            self._sharing = Sharing(memory, checked(self.specs, self._published()), digesting)
        if self._sharing is None:
            raise SendError(f"share bucket {index}: no publication has begun")
        return self._sharing.share(index)

    def shared(self) -> Digests | None:
        """Rank 0 returns the digests of what engines must hold that have loaded all buckets."""
        if self._sharing is None:
            raise SendError("shared: no publication has begun")
        sharing, self._sharing = self._sharing, None
        return sharing.finish()

    def digests(self) -> Digests | None:
        """Rank 0 returns the digests of what engines with these weights must hold."""
        return self._with_export(lambda sender, tensors: sender.digests(tensors))

    def disconnect(self) -> None:
        """Leave the engines' group."""
        if self._sender is not None:
            self._sender.disconnect()

    def _delta_writer(self) -> DeltaWriter:
        self._deltas = self._deltas or DeltaWriter(self.specs)
        return self._deltas

    def _published(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors as engines get them. Every rank must exhaust this, or the export."""
        return self._encoding.tensors(self.export())

    def _with_export(self, work: Callable[[WeightSender, Named], T]) -> T | None:
        tensors = self.export() if self._sender is None else self._published()
        try:
            return None if self._sender is None else work(self._sender, tensors)
        finally:
            for _ in tensors:  # the others wait in the export's collectives until every rank has exhausted it
                pass
