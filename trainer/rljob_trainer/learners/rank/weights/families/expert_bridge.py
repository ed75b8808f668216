"""Names and shapes of experts between Hugging Face and Megatron, where its ranks share them out.

mbridge expects Transformer Engine's experts, whose weights are `linear_fc1.weight3`; Megatron's own are modules by
themselves, `local_experts.3.linear_fc1.weight`. It also takes every expert's weight to be split over the tensor ranks.
"""

import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from mbridge.core.util import broadcast_from_megatron_pp

from rljob_trainer.learners.rank.experts.experts import held
from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge

_LOCAL = re.compile(r"\.experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight$")
_EXPERT = re.compile(r"\.mlp\.experts\.linear_fc[12]\.weight(\d+)$")


class ExpertBridge(LocalBridge):
    """What families with experts have in common."""

    def _family(self) -> dict[str, Any]:
        return super()._family() | {
            "num_moe_experts": self.shape.experts,
            "moe_ffn_hidden_size": self.shape.ffn,
            "moe_router_topk": self.shape.experts_per_token,
            "moe_router_load_balancing_type": "none",
            "moe_aux_loss_coeff": 0.0,
            "moe_router_score_function": "softmax",
            "moe_grouped_gemm": False,
            "moe_token_dispatcher_type": "alltoall",
        }

    def load_weights(self, models: list[torch.nn.Module], weights_path: str, memory_efficient: bool = False) -> None:
        """Load from Hugging Face; every tensor-parallel group reads what it needs."""
        super().load_weights([self.named(model) for model in models], weights_path, memory_efficient)

    def named(self, model: torch.nn.Module) -> Any:
        return _Named(super().named(model))

    def _is_alone(self) -> bool:
        return super()._is_alone() and self.mpu.ep_size == self.mpu.etp_size == 1

    def export_weights(self, models: list[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor whole, on all ranks of a data-parallel share's model. Collective."""
        parameters: dict[str, torch.Tensor] = {}
        for model in map(self.named, models):
            global_names = self._weight_name_mapping_mcore_local_to_global(model, consider_ep=False)
            parameters |= {global_names[name]: parameter for name, parameter in model.named_parameters()}
        names: list[list[str]] = [[] for _ in range(self.mpu.pp_size)]
        dist.all_gather_object(names, list(parameters), group=self.mpu.pp_group)
        for stage, name in ((stage, name) for stage, each in enumerate(names) for name in each):
            parameter = broadcast_from_megatron_pp(parameters[name] if stage == self.mpu.pp_rank else None)
            for each, tensor in self._gathered(name, parameter):
                yield from zip(*self._weight_to_hf_format(each, tensor), strict=True)

    def _gathered(self, name: str, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a weight of this stage whole; of an expert, that of its neighbour on each other rank, too."""
        if not (found := _EXPERT.search(name)):
            tensor = getattr(parameter, "tensor_model_parallel", False)
            parts = _parts(parameter, self.mpu.tp_group) if tensor else [parameter]
            yield name, self._weight_merge_across_tp(name, parts, parameter) if tensor else parameter
            return
        local, prefix = int(found[1]), name[: found.start(1)]
        here = self.config.num_moe_experts // self.mpu.ep_size
        slices = [_parts(part, self.mpu.ep_group) for part in _parts(parameter, self.mpu.etp_group)]
        for rank in range(self.mpu.ep_size):
            yield f"{prefix}{rank * here + local}", _merged(name, [each[rank] for each in slices])


class _Named:
    """A model whose experts have the names that mbridge knows, and whose routers' biases are among its parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.decoder = model.decoder
        self._parameters = {_renamed(name): tensor for name, tensor in held(model)}
        self._state = {_renamed(name): tensor for name, tensor in model.state_dict().items()}

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._parameters.items())

    def state_dict(self) -> dict[str, Any]:
        return self._state


def _renamed(name: str) -> str:
    return _LOCAL.sub(r".experts.\2.weight\1", name)


def _parts(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Return the tensors of a group's ranks."""
    if group.size() == 1:
        return [tensor]
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    return parts


def _merged(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """Return an expert's weight from the slices of the ranks that share it."""
    if "linear_fc2" in name:
        return torch.cat(parts, dim=1)
    halves = [part.chunk(2) for part in parts]  # gate and up, one below the other
    return torch.cat([half[side] for side in (0, 1) for half in halves])
