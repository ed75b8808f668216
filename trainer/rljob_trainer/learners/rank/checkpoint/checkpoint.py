"""A learner's state in Megatron's distributed checkpoint format: weights, optimizer, schedule, random state, counters.

Any layout loads what any other has written. Optimizer state is stored by parameter, like the weights: Megatron's
`fully_reshardable`, which gathers each data-parallel group's shards on its first rank, in host memory, while it saves
(12 bytes for each parameter of the model-parallel rank), and gives every rank the same while it loads.
"""

import queue
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding
from torch.distributed.checkpoint import CheckpointException

from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.learners.errors import CheckpointFormatError, CriticMismatchError
from rljob_trainer.learners.rank.checkpoint import safe_reading
from rljob_trainer.learners.rank.critic import Critic
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, restore_steps
from rljob_trainer.rundir.retries import PATIENT, Patience, StorageError

_FORMAT = "fully_reshardable"
_WEIGHTS = "weights"
"""of a checkpoint without optimizer"""
_METADATA = {
    "distrib_optim_sharding_type": _FORMAT,
    "distrib_optim_fully_reshardable_mem_efficient": True,  # one rank of a group holds the whole state, not all
}
_FROM_MANIFEST = ("max_lr", "min_lr", "betas", "eps")
"""of a parameter group: a resumed run takes these from its manifest, which may have changed, not from the checkpoint"""


def save(
    directory: Path,
    chunks: Sequence[Any],
    optimizer: Optimizer,
    layout: ParallelLayout,
    counters: Mapping[str, Any],
    critic: Critic | None = None,
) -> None:
    """Write the state of all ranks into `directory`, which may exist but must be empty. Collective.

    `chunks` are this rank's of the model.
    """
    state = _state(chunks, optimizer, is_loading=False) | _critic_state(critic, is_loading=False)
    header = {"format": _FORMAT, "has_critic": critic is not None, "layout": str(layout), "counters": dict(counters)}
    _write_state(directory, state | header)


def save_weights(directory: Path, module: Any) -> None:
    """Write the weights alone, of a model that no learner has trained. Collective."""
    _write_state(directory, {"model": module.sharded_state_dict(), "format": _WEIGHTS})


@torch.no_grad()
def load_weights(directory: Path, module: Any) -> None:
    """Read the weights alone, of a checkpoint with or without the rest, by any layout. Collective.

    Raises CheckpointFormatError if the checkpoint holds code, and StorageError.
    """
    state = _read({"model": module.sharded_state_dict()}, directory, PATIENT)
    module.load_state_dict(state["model"])


@torch.no_grad()
def load(
    directory: Path,
    chunks: Sequence[Any],
    optimizer: Optimizer,
    layout: ParallelLayout,
    critic: Critic | None = None,
    patience: Patience = PATIENT,
) -> dict[str, Any]:
    """Read the state and return its counters. Collective.

    Raises CheckpointFormatError or CriticMismatchError before anything has changed, and StorageError. Random state is
    of ranks, so another layout keeps its own: without dropout nothing in a step is random.
    """
    common = safe_reading.read_common(directory, patience)
    if common.get("format") != _FORMAT:
        raise CheckpointFormatError(
            f"{directory} holds optimizer state in format {common.get('format')}; this version reads {_FORMAT}"
        )
    _check_critic(directory, common["has_critic"], critic is not None)
    wanted = _state(chunks, optimizer, is_loading=True) | _critic_state(critic, is_loading=True)
    if common["layout"] != str(layout):
        del wanted["random"]
    state = _read(wanted, directory, patience)
    _restore(chunks, optimizer, state)
    if critic is not None:
        _restore(critic.chunks, critic.optimizer, state["critic"])
    if "random" in state:
        _set_random_state(state["random"], _device(chunks))
    return dict(common["counters"])


def _read(wanted: dict[str, Any], directory: Path, patience: Patience) -> dict[str, Any]:
    """Return the wanted parts of a checkpoint. Raises CheckpointFormatError and StorageError."""
    safe_reading.install(patience)
    safe_reading.read_metadata(directory, patience)  # before anything changes
    try:
        state: dict[str, Any] = dist_checkpointing.load(wanted, str(directory))
    except CheckpointException as error:
        for cause, _ in error.failures.values():
            if isinstance(cause, CheckpointFormatError | StorageError):
                raise cause from error
        raise
    return state


def _check_critic(directory: Path, saved: bool, wanted: bool) -> None:
    if saved != wanted:
        words = {True: "a critic", False: "no critic"}
        raise CriticMismatchError(
            f"{directory} was written with {words[saved]}, and the manifest asks for {words[wanted]} "
            "(spec.algorithm.critic): keep the algorithm of the checkpoint, or use another checkpoint.directory"
        )


def _restore(chunks: Sequence[Any], optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Put what was read into a model and its optimizer."""
    for place, chunk in enumerate(chunks):
        chunk.module.load_state_dict(state["model"][place])
    wanted = [{name: group[name] for name in _FROM_MANIFEST} for group in optimizer.megatron.param_groups]
    optimizer.megatron.load_state_dict(state["optimizer"])
    for group, own in zip(optimizer.megatron.param_groups, wanted, strict=True):
        group.update(own)
    restore_steps(optimizer.megatron, state["schedule_steps"])
    optimizer.schedule.num_steps = 0
    optimizer.put_away()
    optimizer.schedule.step(state["schedule_steps"])  # its shape comes from the manifest, which may have changed


def _write_state(directory: Path, state: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    _write_in_this_process()
    for each in nested_values(state):
        if isinstance(each, ShardedTensor):
            each.data = narrow(each.data)
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    dist_checkpointing.save(state, str(directory), strategy)


def narrow(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in a storage that has no others, without a copy.

    Weights are views of one buffer, and `torch.save` writes whole storages: Megatron copies every view before.
    """
    is_view = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.itemsize
    if tensor.device.type != "cpu" or not is_view or not tensor.is_contiguous():
        return tensor
    # Not by NumPy: the storage could never be emptied again, see `device_memory`.
    return torch.from_dlpack(tensor.detach())


def _state(chunks: Sequence[Any], optimizer: Optimizer, is_loading: bool) -> dict[str, Any]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return {
        **_trained(chunks, optimizer, is_loading),
        "random": ShardedObject("random", _random_state(_device(chunks)), (world_size,), (rank,)),
    }


def _critic_state(critic: Critic | None, is_loading: bool) -> dict[str, Any]:
    """Return the critic's state, whose tensors have separate names; nothing without one."""
    if critic is None:
        return {}
    state = {"critic": _trained(critic.chunks, critic.optimizer, is_loading)}
    add_prefix_for_sharding(state, "critic.")
    return state


def _trained(chunks: Sequence[Any], optimizer: Optimizer, is_loading: bool) -> dict[str, Any]:
    """Return the state of a model and its optimizer. Tensors are stored by the numbers that layers have in the whole
    model, so it does not matter in which chunk they are."""
    weights = {place: chunk.module.sharded_state_dict() for place, chunk in enumerate(chunks)}
    state = optimizer.megatron.sharded_state_dict(weights, is_loading=is_loading, metadata=_METADATA)
    optimizer.put_away()
    return {"model": weights, "optimizer": state, "schedule_steps": optimizer.schedule.num_steps}


def _device(chunks: Sequence[Any]) -> torch.device:
    device: torch.device = next(chunks[0].module.parameters()).device
    return device


def _random_state(device: torch.device) -> dict[str, Any]:
    # Not by whether there is a GPU: on its CPU a machine that has one trains, too.
    cuda = torch.cuda.get_rng_state() if device.type == "cuda" else None
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def _set_random_state(state: dict[str, Any], device: torch.device) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"])


def _write_in_this_process() -> None:
    """Let Megatron write files here and now instead of in forked children with a manager process between.

    A fork copies one thread of a process that runs those of gloo or NCCL, OpenMP and Ray; any lock that another of them
    held stays locked in the child. It is also slower: the manager starts a second interpreter.
    """
    filesystem_async._get_write_results_queue = queue.Queue
    filesystem_async.FileSystemWriterAsync.write_preloaded_data_multiproc = staticmethod(_write)


def _write(transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: Any) -> None:
    """Do what `write_preloaded_data_multiproc` does, one bucket after the other."""
    written: dict[int, Any] | Exception = {}
    for index, bucket in enumerate(buckets):
        local: queue.Queue[tuple[int, Any]] = queue.Queue()
        pending: queue.Queue[int] = queue.Queue()
        pending.put(index)
        filesystem_async.FileSystemWriterAsync.write_preloaded_data(
            transforms, index, bucket, local, pending, True, use_msc=use_msc
        )
        _, result = local.get_nowait()
        if isinstance(result, Exception):
            written = result
            break
        assert isinstance(written, dict)
        written[index] = result
    results.put(written)
