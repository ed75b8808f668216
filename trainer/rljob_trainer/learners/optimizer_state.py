"""The optimizer's state of a group of data-parallel ranks, on the host of its first rank, for a checkpoint.

Does what Megatron's `DistributedOptimizer.get_parameter_state_dp_zero` does, with the same result. Megatron fills the
whole state with zeros three times, receives it through gloo, also from GPUs, and copies it twice more.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

MOMENTS = ("exp_avg", "exp_avg_sq")
STATE = ("param", *MOMENTS)
"""what a checkpoint holds of each parameter beside its weight, by Megatron's names"""
PIECE = 2**24
"""numbers that each rank sends at once; on GPUs the first rank copies them to the host then"""

Flat = Mapping[str, torch.Tensor]
"""for each of the moments, those of all parameters of a buffer, laid end to end"""


def master_of(part: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return what the optimizer updates for a parameter of the model, or this rank's part of it."""
    group, place = part.model_param_group_index_map[parameter]
    master: torch.Tensor = part.optimizer.param_groups[group]["params"][place]
    return master


def whole_state(part: Any, moments: Sequence[Flat], *, empty_data: bool, **_: object) -> dict[Any, Any]:
    """Return masters and moments of each buffer, laid end to end, where one rank has all of them."""
    state: dict[Any, Any] = {}
    for index, (buffer, flat) in enumerate(zip(part.buffers, moments, strict=True)):
        if empty_data:
            ends = _zeros(buffer)
        else:
            ends = {"param": _masters(part, buffer), **{name: moment.cpu() for name, moment in flat.items()}}
        state[index] = dict.fromkeys(part.gbuf_ranges[index], ends)
    return state


def gathered(part: Any, *, empty_data: bool, return_on_all_ranks: bool = False, **_: object) -> dict[Any, Any] | None:
    """Return masters and moments of each buffer, laid end to end, from all ranks that share them. Collective.

    The group's first rank returns them, all ranks if they are empty; the others return None.
    """
    if empty_data:
        return {index: dict.fromkeys(part.gbuf_ranges[index], _zeros(each)) for index, each in enumerate(part.buffers)}
    is_first = part.data_parallel_group.rank() == 0
    state = {
        index: dict.fromkeys(part.gbuf_ranges[index], _gathered_buffer(part, index, is_first))
        for index in range(len(part.buffers))
    }
    return state if is_first else None


def _zeros(buffer: Any) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(buffer.numel_unpadded, device="cpu") for name in STATE}


def _masters(part: Any, buffer: Any) -> torch.Tensor:
    """Return the masters of a buffer end to end, on the CPU; fp32 weights are their own, and lie so already."""
    if buffer.param_dtype is torch.float32:
        weights: torch.Tensor = buffer.param_data[: buffer.numel_unpadded]
        return weights.detach().cpu()
    masters = torch.zeros(buffer.numel_unpadded)
    for parameter, (start, end, _bucket) in buffer.param_index_map.items():
        masters[start:end].copy_(master_of(part, parameter).detach().view(-1))
    return masters


def _gathered_buffer(part: Any, index: int, is_first: bool) -> dict[str, torch.Tensor]:
    """Return what the first rank has of a buffer in the end; the others return nothing.

    Every bucket is shared out in equal parts, and padded for that; the whole has no padding.
    """
    buffer = part.buffers[index]
    (bucket_ranges,) = part.gbuf_ranges[index].values()
    whole = {name: torch.empty(buffer.numel_unpadded, device="cpu") for name in STATE} if is_first else {}
    begin = 0
    for bucket, ranges in zip(buffer.buckets, bucket_ranges, strict=True):
        end = begin + bucket.numel_unpadded
        for name, shard in _shards(part, bucket, ranges["param_map"]).items():
            gather(shard, whole[name][begin:end] if is_first else None, part.data_parallel_group)
        begin = end
    return whole


def _shards(part: Any, bucket: Any, places: Mapping[torch.Tensor, Any]) -> dict[str, torch.Tensor]:
    """Return this rank's part of a bucket, on its device; what lies between parameters is zero."""
    numbers = bucket.grad_data.numel() // part.data_parallel_group.size()
    shards = {name: torch.zeros(numbers, device=bucket.grad_data.device) for name in STATE}
    for parameter, place in places.items():
        held = part._get_main_param_and_optimizer_states(parameter)
        own = place["gbuf_local"]
        for name, shard in shards.items():
            shard[own.start : own.end].copy_(held[name].detach().view(-1))
    return shards


def gather(shard: torch.Tensor, whole: torch.Tensor | None, group: dist.ProcessGroup) -> None:
    """Lay the shards of a group end to end into `whole`, on the host of its first rank; the others give None.

    `whole` may be shorter than all shards: they are padded. Collective.
    """
    first = dist.get_global_rank(group, 0)
    for start in range(0, shard.numel(), PIECE):
        sent = shard[start : start + PIECE]
        if whole is None:
            dist.gather(sent, None, first, group)
            continue
        begins = [rank * shard.numel() + start for rank in range(group.size())]
        places = [whole[begin : begin + sent.numel()] for begin in begins]
        received = [place if _fits(sent, place) else torch.empty_like(sent) for place in places]
        dist.gather(sent, received, first, group)
        for place, piece in zip(places, received, strict=True):
            if piece is not place:
                place.copy_(piece[: place.numel()])


def _fits(sent: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether a tensor can be received where it is wanted."""
    return bool(sent.device == place.device and sent.shape == place.shape)
