"""A rank's part of a checkpoint that is being made: what goes into its file, and the file.

    all ranks: plan ─► Draft ─► write, beside the training ─► Written ─► rank 0: finish, which writes where all is

Files are those of PyTorch's distributed checkpoints, as Megatron writes them: planning is theirs. Writing is done here,
by one thread of the rank: Megatron forks for it, and a fork copies one thread of a process that runs those of gloo or
NCCL, OpenMP and Ray; any lock that another of them held stays locked in the child.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
from megatron.core.dist_checkpointing.strategies.common import TorchCommonSaveStrategy
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from rljob_trainer.learners.rank.checkpoint.moved import Moved
from rljob_trainer.learners.rank_calls import Written
from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.retries import Patience

FORMAT = CheckpointingConfig("torch_dist", 1)
SUMS = ".sums"
"""ends the name of a file with the sums of another"""
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Draft:
    """What one rank has to write; its tensors are copies in host memory."""

    directory: Path
    rank: int
    items: Sequence[tuple[WriteItem, torch.Tensor | BytesIO]]
    whole: "Whole | None"
    """on rank 0"""

    def write(self, patience: Patience, moved: Moved) -> Written:
        """Write the file of this rank, and sums of its parts; return what rank 0 has to know. Raises StorageError."""
        if not self.items:
            return Written(np.empty(0, np.int64), {})
        path = self.directory / file_name(self.rank)
        sums = sums_path(path)
        file = patience(path, lambda: self._write(path, moved))
        content = json.dumps(file.sums).encode()
        patience(sums, lambda: write_atomically(sums, content))
        digests = {path.name: file.whole.hexdigest(), sums.name: xxhash.xxh3_128_hexdigest(content)}
        return Written(np.array(file.lengths, np.int64), digests)

    def _write(self, path: Path, moved: Moved) -> "_File":
        with path.open("wb") as stream:
            file = _File(stream)
            for _, value in self.items:
                file.add(value)
                moved.add(file.lengths[-1])
            stream.flush()
            os.fsync(stream.fileno())
        return file


@dataclass(frozen=True)
class Whole:
    """What a checkpoint consists of."""

    plans: Sequence[SavePlan]
    """what each rank writes"""
    metadata: Metadata


class _File:
    """A file that is being written: counts what is written, and sums it up, as a whole and each item alone."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._place = 0
        self._item = xxhash.xxh3_128()
        self.whole = xxhash.xxh3_128()
        self.lengths: list[int] = []
        """of the items [bytes]"""
        self.sums: dict[int, str] = {}
        """XXH3 (128 bits) of each item, by the place where it begins [bytes]"""

    def add(self, value: torch.Tensor | BytesIO) -> None:
        """Write a tensor, or an object that is bytes already."""
        begin = self._place
        self._item.reset()
        if isinstance(value, torch.Tensor):
            torch.save(narrow(value), self)
        else:
            self.write(value.getbuffer())
        self.lengths.append(self._place - begin)
        self.sums[begin] = self._item.hexdigest()

    def write(self, content: Buffer) -> int:
        """Append to the file; torch calls it."""
        length = memoryview(content).nbytes
        self._stream.write(content)
        self._item.update(content)
        self.whole.update(content)
        self._place += length
        return length

    def flush(self) -> None:
        """Leave it to the end; torch calls it."""


def plan(directory: Path, state: dict[str, Any]) -> Draft:
    """Say what each rank writes of a state, whose tensors are in host memory. Collective.

    Rank 0 writes what all ranks have, such as counters. `directory` exists.
    """
    rank = dist.get_rank()
    sharded, common = save_preprocess(state, validate_access_integrity=False)  # PyTorch validates the plan
    if rank == 0:
        TorchCommonSaveStrategy("torch", 1).save_common(common, str(directory))
    by_key, _, _ = torch_strategy._replace_state_dict_keys_with_sharded_keys(sharded, True)
    tensors = torch_strategy.mcore_to_pyt_state_dict(by_key)
    planner = torch_strategy.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
    planner.set_up_planner(tensors, is_coordinator=rank == 0)
    own = planner.create_local_plan()
    plans: list[Any] | None = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object(own, plans)
    whole = Whole(plans, planner.create_global_plan(plans)[1]) if plans is not None else None
    return Draft(directory, rank, [(item, planner.resolve_data(item)) for item in own.items], whole)


def write_now(draft: Draft, patience: Patience) -> None:
    """Write the whole checkpoint. Collective."""
    everything: list[Any] | None = [None] * dist.get_world_size() if draft.rank == 0 else None
    dist.gather_object(draft.write(patience, Moved()), everything)
    if everything is not None:
        finish(draft, everything)
    dist.barrier()


def finish(draft: Draft, written: Sequence[Written]) -> None:
    """Write where everything lies in the ranks' files. On rank 0, when all ranks have written."""
    assert draft.whole is not None, "rank 0 has the plans of all"
    plans = enumerate(zip(draft.whole.plans, written, strict=True))
    results = [_results(rank, plan, each) for rank, (plan, each) in plans]
    _MetadataWriter(draft.directory).finish(draft.whole.metadata, results)
    save_config(FORMAT, str(draft.directory))


class _MetadataWriter(FileSystemWriter):
    def storage_meta(self) -> None:
        """Name no path: a checkpoint is moved when it is complete."""


def _results(rank: int, plan: SavePlan, written: Written) -> list[WriteResult]:
    lengths = written.lengths.tolist()
    places = [0, *accumulate(lengths)]
    return [
        WriteResult(item.index, length, _StorageInfo(file_name(rank), place, length))
        for item, place, length in zip(plan.items, places, lengths, strict=False)
    ]


def file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"__{rank}_0.distcp"


def sums_path(path: Path) -> Path:
    """Return where the sums of a rank's file are."""
    return path.with_name(f"{path.name}{SUMS}")


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in a storage that has no others: `torch.save` writes whole storages."""
    if not tensor.is_contiguous():
        return tensor.contiguous()
    if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize:
        return tensor
    # Not by NumPy: the storage could never be emptied again, see `device_memory`.
    return torch.from_dlpack(tensor.detach())


def sums_of(content: bytes) -> Mapping[int, str]:
    """Return the sums of a file's items, by the place where each begins. Raises ValueError."""
    return {int(place): str(digest) for place, digest in json.loads(content).items()}
