"""What the driver calls on ranks for a publication, see `learners/rank_calls.py`; the implementations describe it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.sync.layout import TensorSpec

Backend = Literal["gloo", "nccl"]
"""by which learner and engines exchange tensors"""
Digests = Sequence[Mapping[str, str]]
"""for each rank of an engine: tensor name -> digest"""


class WritingRank(Protocol):
    """`PublishingRank`, or `CheckpointFiles` where nothing is trained. None is the answer of all ranks but rank 0."""

    def weight_specs(self) -> tuple[TensorSpec, ...]: ...

    def write(self, directory: Path) -> None: ...

    def written(self) -> Digests | None: ...


class SendingRank(WritingRank, Protocol):
    """`PublishingRank`. None is the answer of all ranks but rank 0."""

    def connect(
        self, address: str, port: int, world_size: int, name: str, backend: Backend, timeout_s: float
    ) -> None: ...

    def send(self, bucket_bytes: int) -> Digests | None: ...

    def offer(self, directory: Path) -> WeightFiles | None: ...

    def write_whole(self, files: WeightFiles) -> None: ...

    def share(self, index: int, bucket_bytes: int) -> str: ...

    def shared(self) -> Digests | None: ...

    def disconnect(self) -> None: ...
