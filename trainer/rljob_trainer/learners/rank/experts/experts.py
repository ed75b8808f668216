"""Megatron's mixture-of-experts layer, with its `alltoall` dispatcher, for tokens that all tensor ranks have.

    tokens ─► own share of them ─► router ─► to the ranks of their experts ─► MLP ─► back ─► all shares

Megatron wants sequence parallelism here, so that no token is computed twice. Without it the tensor ranks share out the
tokens of a micro-batch inside this layer alone, as they are. With it they have shares already, filled up to one length
by a few tokens, which experts compute, too.

Axes: N computed tokens, H hidden, E experts.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_layer import TransformerLayer

from rljob_trainer.learners.rank.attention.layout import share_length
from rljob_trainer.learners.rank.experts.routing import Routing

LOCAL_EXPERTS = ".mlp.experts.local_experts."
"""in the name of every parameter that only the ranks of its expert have"""
BIAS = "expert_bias"
"""Megatron's name of a router's bias"""
_ROUTER_DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
_ALONE = SimpleNamespace(size=lambda: 1)

if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # Megatron 0.16.1 reads the name without Transformer Engine, too


class RoutedLayer(TransformerLayer):
    """A layer whose router knows the micro-batch, also when the layer is computed again in the backward pass."""

    def forward(self, *args: Any, packed_seq_params: Any = None, **named: Any) -> Any:
        self.mlp.router.batch = packed_seq_params.routing
        return super().forward(*args, packed_seq_params=packed_seq_params, **named)


class ExpertLayer(MoELayer):
    """The layer for tokens [N, 1, H] that all tensor-parallel ranks have, or for this rank's share of them; its output
    is the same."""

    def __init__(self, config: Any, submodules: Any, **named: Any) -> None:
        super().__init__(config=config, submodules=submodules, **named)
        self.attn_tp_group = _ALONE  # Megatron refuses several ranks that all compute the same tokens

    def forward(self, hidden_states: torch.Tensor, *args: Any, **named: Any) -> tuple[torch.Tensor, None]:
        if self.config.sequence_parallel:
            whole, _ = super().forward(hidden_states, *args, **named)
        else:
            output, _ = super().forward(_Share.apply(hidden_states, self.tp_group), *args, **named)
            whole = _Whole.apply(output, self.tp_group, len(hidden_states))
        shared = super().shared_experts_compute(hidden_states)
        return (whole if shared is None else whole + shared), None

    def shared_experts_compute(self, hidden_states: torch.Tensor) -> None:
        """Return nothing where Megatron asks: the tensor ranks share out the columns, so all need all tokens."""


class Router(TopKRouter):
    """Megatron's router; the tensor ranks, which have routed different tokens, sum its weight's gradient: at the end of
    a step, as that of norms, where the tokens are shared out in all layers, and else here."""

    batch: Routing | None = None

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.router_replay = _Replay(self)

    def routing(self, logits: torch.Tensor, padding_mask: torch.Tensor | None = None) -> tuple[Any, Any]:
        """Return probabilities and map of the chosen experts [N, E], with the losses of the micro-batch."""
        probs, chosen = super().routing(logits, padding_mask)
        if self.batch is not None:
            flat = logits.view(-1, self.config.num_moe_experts)
            probs = self.batch.losses(self.layer_number - 1, flat, chosen, probs)
        return probs, chosen

    def gating(self, input: torch.Tensor) -> torch.Tensor:  # Megatron's name
        summed_later = self.config.sequence_parallel
        weight = self.weight if summed_later else copy_to_tensor_model_parallel_region(self.weight, self.tp_group)
        dtype = _ROUTER_DTYPES.get(self.config.moe_router_dtype, input.dtype)
        logits: torch.Tensor = moe_utils.router_gating_linear(input, weight, None, dtype)
        return logits

    def _apply_expert_bias(self, routing_map: torch.Tensor, padding_mask: torch.Tensor | None = None) -> None:
        """Do nothing: the loads are in the tally; Megatron's method is compiled before it does nothing."""


class BiasedRouter(Router):
    """A router that chooses by score and bias, and weighs by score alone.

    `adjust_biases` changes the bias. Megatron would count the load of each expert for `moe_router_enable_expert_bias`
    again, and sum it over ranks again.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        del self.expert_bias  # Megatron's None
        self.register_buffer(BIAS, torch.zeros(self.config.num_moe_experts, dtype=torch.float32))


class _Replay:
    """What Megatron asks where its router would choose, instead of its own class of global state."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def get_replay_topk(
        self, scores: torch.Tensor, topk: int, num_groups: Any, group_topk: Any, choose: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and numbers of the experts of each token [N, K]."""
        eligible = within_groups(scores, num_groups, group_topk) if group_topk else scores
        top, experts = choose(eligible, topk)
        batch = self._router.batch
        if batch is None:
            return top, experts
        return batch.chosen(self._router.layer_number - 1, scores, top, experts)


def within_groups(scores: torch.Tensor, groups: int, most: int) -> torch.Tensor:
    """Return the scores [N, E], those outside each token's `most` best groups of experts -inf.

    A group's score is the sum of its two best experts, as in DeepSeek-V3 (arXiv 2412.19437), transformers and SGLang;
    Megatron adds up K / `most` of them.
    """
    if most == groups:
        return scores
    grouped = scores.unflatten(1, (groups, -1))
    best = grouped.topk(2, dim=-1).values.sum(-1).topk(most, dim=-1).indices
    outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(1, best, False)
    return grouped.masked_fill(outside[..., None], float("-inf")).flatten(1)


def biases(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the biases that routers choose with: saved and sent like weights, and without a gradient."""
    return ((name, tensor) for name, tensor in model.named_buffers() if name.endswith(f".router.{BIAS}"))


def held(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all that a checkpoint has of a model: its parameters, and the biases of its routers."""
    yield from model.named_parameters()
    yield from biases(model)


def adjust_biases(model: torch.nn.Module, loads_L_E: torch.Tensor, rate: float) -> None:
    """Raise the bias of experts with less than the mean load of their layer by `rate`, and lower that of others.

    `loads_L_E`: tokens of each expert in an optimizer step, of all ranks. DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
    """
    for router in model.modules():
        if isinstance(router, BiasedRouter):
            loads_E = loads_L_E[router.layer_number - 1]
            router.expert_bias += rate * (loads_E.mean() - loads_E).sign().to(router.expert_bias.dtype)


def expert_parameters(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters of the experts that this rank has."""
    return (parameter for name, parameter in model.named_parameters() if LOCAL_EXPERTS in name)


class _Share(torch.autograd.Function):
    """This rank's share of the tokens; their gradients go to all ranks."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group, ctx.length = group, len(tokens)
        return _share(tokens, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _whole(grad, ctx.group, ctx.length), None


class _Whole(torch.autograd.Function):
    """All ranks' shares; every rank has the same gradient of them, and keeps that of its own share."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, group: dist.ProcessGroup, length: int) -> torch.Tensor:
        ctx.group = group
        return _whole(tokens, group, length)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _share(grad, ctx.group), None, None


def _share(tokens: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    size = share_length(len(tokens), group.size())
    return tokens[group.rank() * size : (group.rank() + 1) * size].contiguous()


def _whole(share: torch.Tensor, group: dist.ProcessGroup, length: int) -> torch.Tensor:
    """Return the tokens of all shares; the last ones may be shorter, and are filled up on the way."""
    if group.size() == 1:
        return share
    size = share_length(length, group.size())
    filled = share.new_zeros((size, *share.shape[1:]))
    filled[: len(share)] = share
    whole = share.new_empty((size * group.size(), *share.shape[1:]))
    dist.all_gather_into_tensor(whole, filled, group=group)
    return whole[:length]
