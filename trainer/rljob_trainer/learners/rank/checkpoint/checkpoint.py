"""A learner's state in Megatron's distributed checkpoint format: weights, optimizer, schedule, random state, counters.

Any layout loads what any other has written. Each rank writes and reads its own range of every parameter that is
trained, with masters and moments (`pieces.py`); weights are those of their masters, so they are not read.
"""

import random
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding
from torch.distributed.checkpoint import CheckpointException

from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.learners.errors import CheckpointFormatError, CriticMismatchError, DamagedCheckpointError
from rljob_trainer.learners.rank.checkpoint import safe_reading
from rljob_trainer.learners.rank.checkpoint.draft import Draft, plan, write_now
from rljob_trainer.learners.rank.checkpoint.moved import Moved
from rljob_trainer.learners.rank.checkpoint.pieces import pieces
from rljob_trainer.learners.rank.checkpoint.staging import Staging
from rljob_trainer.learners.rank.critic import Critic
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, restore_steps
from rljob_trainer.learners.rank.optimizer.optimizer_state import STATE, Share, shares
from rljob_trainer.rundir.retries import PATIENT, Patience, StorageError

_FORMAT = "fully_reshardable"
_WEIGHTS = "weights"
"""of a checkpoint without optimizer"""
_FROM_MANIFEST = ("max_lr", "min_lr", "betas", "eps")
"""of a parameter group: a resumed run takes these from its manifest, which may have changed, not from the checkpoint"""
_OF_OLD_VERSIONS = ("param_state", "param_state_sharding_type")
"""what Megatron would read of an optimizer's state by itself"""


def stage(
    directory: Path,
    chunks: Sequence[Any],
    optimizer: Optimizer,
    layout: ParallelLayout,
    counters: Mapping[str, Any],
    staging: Staging,
    critic: Critic | None = None,
) -> Draft:
    """Copy the state of all ranks to their hosts, and say what each writes of it into an empty directory. Collective.

    `chunks` are this rank's of the model.
    """
    staging.empty()
    state = _saved(chunks, optimizer, staging)
    if critic is not None:
        state["critic"] = _of_critic(_saved(critic.chunks, critic.optimizer, staging))
    header = {"format": _FORMAT, "has_critic": critic is not None, "layout": str(layout), "counters": dict(counters)}
    state |= {"random": _random(chunks), **header}
    staging.wait()
    return plan(directory, state)


def save_weights(directory: Path, module: Any) -> None:
    """Write the weights alone, of a model that no learner has trained. Collective."""
    directory.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    write_now(plan(directory, {"model": module.sharded_state_dict(), "format": _WEIGHTS}), PATIENT)


@torch.no_grad()
def load_weights(directory: Path, module: Any) -> None:
    """Read the weights alone, of a checkpoint with or without the rest, by any layout.

    Raises CheckpointFormatError if the checkpoint holds code, and StorageError.
    """
    state = _read({"model": module.sharded_state_dict()}, directory, PATIENT, Moved())
    module.load_state_dict(state["model"])


@torch.no_grad()
def load(
    directory: Path,
    chunks: Sequence[Any],
    optimizer: Optimizer,
    layout: ParallelLayout,
    moved: Moved,
    critic: Critic | None = None,
    patience: Patience = PATIENT,
) -> dict[str, Any]:
    """Read this rank's part of the state, and return its counters. Not collective: `spread` follows.

    Raises CheckpointFormatError or CriticMismatchError before anything has changed, DamagedCheckpointError and
    StorageError. Random state is of ranks, so another layout keeps its own: without dropout nothing in a step is
    random.
    """
    common = safe_reading.read_common(directory, patience)
    if common.get("format") != _FORMAT:
        raise CheckpointFormatError(
            f"{directory} holds optimizer state in format {common.get('format')}; this version reads {_FORMAT}"
        )
    _check_critic(directory, common["has_critic"], critic is not None)
    wanted = _Wanted(chunks, optimizer)
    parts: dict[str, Any] = dict(wanted.state)
    of_critic = None if critic is None else _Wanted(critic.chunks, critic.optimizer)
    if of_critic is not None:
        parts["critic"] = _of_critic(of_critic.state)
    if common["layout"] == str(layout):
        parts["random"] = _random(chunks)
    state = _read(parts, directory, patience, moved)
    wanted.restore(state)
    if of_critic is not None:
        of_critic.restore(state["critic"])
    if "random" in parts:
        _set_random_state(state["random"], _device(chunks))
    return dict(common["counters"])


def spread(chunks: Sequence[Any]) -> None:
    """Give every rank the weights that others have loaded. Collective."""
    for chunk in chunks:
        chunk.start_param_sync()


def _read(wanted: dict[str, Any], directory: Path, patience: Patience, moved: Moved) -> dict[str, Any]:
    """Return the wanted parts of a checkpoint. Raises CheckpointFormatError, DamagedCheckpointError, StorageError."""
    safe_reading.install(patience, moved)
    safe_reading.read_metadata(directory, patience)  # before anything changes
    try:
        state: dict[str, Any] = dist_checkpointing.load(wanted, str(directory), validate_access_integrity=False)
    except CheckpointException as error:
        for cause, _ in error.failures.values():
            if isinstance(cause, CheckpointFormatError | DamagedCheckpointError | StorageError):
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


class _Wanted:
    """What is read of a model and its optimizer, and where it goes."""

    def __init__(self, chunks: Sequence[Any], optimizer: Optimizer) -> None:
        self._chunks, self._optimizer = chunks, optimizer
        model, trained = _described(chunks, optimizer)
        self._read: list[tuple[Share, dict[str, torch.Tensor]]] = []
        states: dict[int, Any] = {}
        for index, (prefix, share) in enumerate(_shares(optimizer)):
            flat = {name: torch.empty(len(share.numbers)) for name in STATE}
            self._read.append((share, flat))
            states[index] = _pieces_of_state(trained, prefix, share, flat)
        kept = {
            place: {
                name: LocalNonpersistentObject(each.data) if _is_trained(each, trained) else each
                for name, each in described.items()
            }
            for place, described in model.items()
        }
        self.state = {"model": kept, "states": states}

    def restore(self, state: dict[str, Any]) -> None:
        """Put what was read into the model and its optimizer."""
        for place, chunk in enumerate(self._chunks):
            chunk.module.load_state_dict(state["model"][place])
        for share, flat in self._read:
            share.take(flat)
        megatron = self._optimizer.megatron
        wanted = [{name: group[name] for name in _FROM_MANIFEST} for group in megatron.param_groups]
        megatron.load_state_dict(_without_parameters(state["optimizer"]))
        for group, own in zip(megatron.param_groups, wanted, strict=True):
            group.update(own)
        restore_steps(megatron, state["schedule_steps"])
        schedule = self._optimizer.schedule
        schedule.num_steps = 0
        self._optimizer.put_away()
        schedule.step(state["schedule_steps"])  # its shape comes from the manifest, which may have changed


def _without_parameters(state: Any) -> Any:
    """Return an optimizer's counters and groups; of several, in their order."""
    if "optimizer" not in state:
        return {index: _without_parameters(each) for index, each in state.items()}
    return {name: value for name, value in state.items() if name not in _OF_OLD_VERSIONS}


def _saved(chunks: Sequence[Any], optimizer: Optimizer, staging: Staging) -> dict[str, Any]:
    """Return the state of a model and its optimizer, copied.

    Tensors are stored by the numbers that layers have in the whole model: it does not matter in which chunk they are.
    """
    model, trained = _described(chunks, optimizer)
    weights: dict[int, Any] = {}
    states: dict[int, Any] = {}
    for index, (prefix, share) in enumerate(_shares(optimizer)):
        held = share.held()
        copies = {name: staging.copy(each) for name, each in held.items()}
        states[index] = _pieces_of_state(trained, prefix, share, copies)
        # fp32 weights are their own masters
        is_master = held["param"].data_ptr() == share.weight.data_ptr()
        weight = copies["param"] if is_master else staging.copy(share.weight)
        whole = trained[share.parameter]
        weights[index] = _filled(whole, whole.key, share.numbers, weight)
    optimizer.put_away()
    others = {
        place: {name: _copied(each, staging) for name, each in described.items() if not _is_trained(each, trained)}
        for place, described in model.items()
    }
    groups = optimizer.megatron.state_dict()
    return {
        "model": {place: copied for place, copied in others.items() if copied},
        "weights": weights,
        "states": states,
        "optimizer": dict(enumerate(groups)) if isinstance(groups, list) else groups,
        "schedule_steps": optimizer.schedule.num_steps,
    }


def _described(
    chunks: Sequence[Any], optimizer: Optimizer
) -> tuple[dict[int, dict[str, Any]], dict[torch.Tensor, Any]]:
    """Return how modules store their tensors, by chunk and name, and by parameter those that are trained."""
    model = {place: chunk.module.sharded_state_dict() for place, chunk in enumerate(chunks)}
    parts = optimizer.megatron.chained_optimizers
    trained = {parameter for part in parts for buffer in part.buffers for parameter in buffer.param_index_map}
    tensors = [each for described in model.values() for each in described.values()]
    return model, {each.data: each for each in tensors if _is_trained(each, trained)}


def _is_trained(stored: Any, trained: Container[torch.Tensor]) -> bool:
    return isinstance(stored.data, torch.nn.Parameter) and stored.data in trained


def _shares(optimizer: Optimizer) -> Iterator[tuple[str, Share]]:
    """Yield this rank's shares of all parameters, each with the beginning of the names of its state."""
    parts = optimizer.megatron.chained_optimizers
    for index, part in enumerate(parts):
        chained = f"chained_{index}." if len(parts) > 1 else ""
        for share in shares(part):
            yield f"{chained}optimizer.state.", share


def _pieces_of_state(
    trained: Mapping[torch.Tensor, Any], prefix: str, share: Share, flat: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    whole = trained[share.parameter]
    return {name: _filled(whole, f"{prefix}{name}.{whole.key}", share.numbers, each) for name, each in flat.items()}


def _filled(whole: Any, key: str, numbers: range, flat: torch.Tensor) -> dict[int, ShardedTensor]:
    """Return the pieces of a range of a parameter whose numbers are `flat`; what is read into them is there, too."""
    found: dict[int, ShardedTensor] = {}
    for index, (places, piece) in enumerate(pieces(whole, key, flat.dtype, numbers)):
        piece.data = flat[places.start : places.stop].view(piece.local_shape)
        found[index] = piece
    return found


def _copied(stored: Any, staging: Staging) -> Any:
    """Return a tensor or object that all ranks have, or one has alone, with a copy of its data."""
    if isinstance(stored, ShardedTensor):
        stored.data = staging.copy(stored.data)
    return stored


def _of_critic(state: dict[str, Any]) -> dict[str, Any]:
    """Return a critic's state; its tensors have separate names."""
    add_prefix_for_sharding(state, "critic.")
    return state


def _random(chunks: Sequence[Any]) -> ShardedObject:
    state = _random_state(_device(chunks))
    return ShardedObject("random", state, (dist.get_world_size(),), (dist.get_rank(),))


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
