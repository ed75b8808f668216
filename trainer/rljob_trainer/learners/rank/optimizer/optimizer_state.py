"""What a data-parallel rank has of each parameter: the range of numbers that it updates, with masters and moments.

A checkpoint is made of these: each rank writes and reads its own range. Where offloading keeps the state on the host,
it is on the device while it is asked for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

MOMENTS = ("exp_avg", "exp_avg_sq")
STATE = ("param", *MOMENTS)
"""what a checkpoint holds of each parameter beside its weight, by Megatron's names"""


@dataclass(frozen=True)
class Share:
    """This rank's range of a parameter."""

    part: Any
    """the optimizer of Megatron that has it"""
    parameter: torch.Tensor
    """of the model, whole"""
    numbers: range
    """which of its numbers, row by row"""
    weight: torch.Tensor
    """these numbers of the parameter, flat, where the model has them"""

    def held(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint holds, flat, on the device until the next share is asked."""
        held = self.part._get_main_param_and_optimizer_states(self.parameter)
        return {name: held[name].detach().view(-1) for name in STATE}

    @torch.no_grad()
    def take(self, loaded: Mapping[str, torch.Tensor]) -> None:
        """Take over what a checkpoint held; the weight is that of its master."""
        self.part._set_main_param_and_optimizer_states(self.parameter, loaded)
        self.weight.copy_(loaded["param"])


def shares(part: Any) -> Iterator[Share]:
    """Yield the ranges that this rank updates of an optimizer's parameters, in the optimizer's own order.

    So neighbours are in the same chunk of what is on the host.
    """
    for parameter in sorted(part.model_param_gbuf_map, key=part.model_param_group_index_map.__getitem__):
        place = part._get_model_param_range_map(parameter)
        numbers = place["param"]
        yield Share(part, parameter, range(numbers.start, numbers.end), weight_of(part, parameter))


def weight_of(part: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's range of a parameter, flat, in the buffer that the model's weights are views of."""
    buffer, _, bucket = part.model_param_gbuf_map[parameter]
    place = part._get_model_param_range_map(parameter)["gbuf_world_in_bucket"]
    weight: torch.Tensor = part.buffers[buffer].buckets[bucket].param_data.view(-1)[place.start : place.end]
    return weight


def master_of(part: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return what the optimizer updates for a parameter of the model, or this rank's part of it."""
    group, place = part.model_param_group_index_map[parameter]
    master: torch.Tensor = part.optimizer.param_groups[group]["params"][place]
    return master
