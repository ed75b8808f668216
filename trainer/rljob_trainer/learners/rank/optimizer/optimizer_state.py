"""The optimizer's state of a group of data-parallel ranks, on the host of its first rank, for a checkpoint.

Does what Megatron's `DistributedOptimizer.get_parameter_state_dp_zero` does. Megatron fills the whole state with zeros
three times, receives it through gloo, also from GPUs, and copies it twice more. It also leaves out the padding between
buckets (an embedding that two pipeline stages share has a separate one), and then looks for parameters where they are
with the padding: 0.16.1 writes wrong states. Here every number has its place in the buffer.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

MOMENTS = ("exp_avg", "exp_avg_sq")
STATE = ("param", *MOMENTS)
"""what a checkpoint holds of each parameter beside its weight, by Megatron's names"""
PIECE = 2**24
"""numbers that each rank sends at once: all that is taken of a GPU for it"""

Flat = Mapping[str, torch.Tensor]
"""for each of the moments, those of all parameters of a buffer, laid end to end"""


def master_of(part: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return what the optimizer updates for a parameter of the model, or this rank's part of it."""
    group, place = part.model_param_group_index_map[parameter]
    master: torch.Tensor = part.optimizer.param_groups[group]["params"][place]
    return master


def length_of(buffer: Any) -> int:
    """Return the place where the last parameter of a buffer ends."""
    return max((end for _start, end, _bucket in buffer.param_index_map.values()), default=0)


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


def gathered(part: Any, *, empty_data: bool, **_: object) -> dict[Any, Any] | None:
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
    return {name: torch.zeros(length_of(buffer), device="cpu") for name in STATE}


def _masters(part: Any, buffer: Any) -> torch.Tensor:
    """Return the masters of a buffer end to end, on the CPU; fp32 weights are their own, and lie so already."""
    if buffer.param_dtype is torch.float32:
        weights: torch.Tensor = buffer.param_data[: length_of(buffer)]
        return weights.detach().cpu()
    masters = torch.zeros(length_of(buffer))
    for parameter, (start, end, _bucket) in buffer.param_index_map.items():
        masters[start:end].copy_(master_of(part, parameter).detach().view(-1))
    return masters


def _gathered_buffer(part: Any, index: int, is_first: bool) -> dict[str, torch.Tensor]:
    """Return what the first rank has of a buffer in the end; the others return nothing.

    Every bucket is shared out in equal parts, and padded for that; the whole has no padding at its end.
    """
    buffer, group = part.buffers[index], part.data_parallel_group
    (bucket_ranges,) = part.gbuf_ranges[index].values()
    length = length_of(buffer)
    whole = {name: torch.empty(length, device="cpu") for name in STATE} if is_first else {}
    for bucket, ranges in zip(buffer.buckets, bucket_ranges, strict=True):
        begin, numbers = bucket.offset, bucket.grad_data.numel() // group.size()
        end = min(length, begin + bucket.grad_data.numel())
        for name, start in product(STATE, range(0, numbers, PIECE)):
            piece = range(start, min(start + PIECE, numbers))
            sent = _own(part, bucket, ranges["param_map"], name, piece)
            firsts = [begin + rank * numbers + start for rank in range(group.size())]
            gather(sent, [whole[name][first:end][: len(piece)] for first in firsts] if is_first else None, group)
    return whole


def _own(part: Any, bucket: Any, places: Mapping[torch.Tensor, Any], name: str, piece: range) -> torch.Tensor:
    """Return a piece of this rank's part of a bucket, on its device; what lies between parameters is zero."""
    numbers = torch.zeros(len(piece), device=bucket.grad_data.device)
    for parameter, place in places.items():
        own = place["gbuf_local"]
        low, high = max(own.start, piece.start), min(own.end, piece.stop)
        if low < high:
            held = part._get_main_param_and_optimizer_states(parameter)[name].detach().view(-1)
            numbers[low - piece.start : high - piece.start].copy_(held[low - own.start : high - own.start])
    return numbers


def gather(sent: torch.Tensor, places: Sequence[torch.Tensor] | None, group: dist.ProcessGroup) -> None:
    """Receive a piece of each rank into its place, on the host of the group's first rank; the others give None.

    A place may be shorter than its piece, which is padded then. Collective.
    """
    first = dist.get_global_rank(group, 0)
    if places is None:
        dist.gather(sent, None, first, group)
        return
    received = [place if _fits(sent, place) else torch.empty_like(sent) for place in places]
    dist.gather(sent, received, first, group)
    for place, piece in zip(places, received, strict=True):
        if piece is not place:
            place.copy_(piece[: place.numel()])


def _fits(sent: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether a tensor can be received where it is wanted."""
    return bool(sent.device == place.device and sent.shape == place.shape)
