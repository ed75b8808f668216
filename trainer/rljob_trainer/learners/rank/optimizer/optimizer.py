"""Megatron's distributed optimizer, with the parts around it that need CUDA or Apex done in PyTorch.

Data-parallel ranks share the optimizer state; weights and gradients lie in contiguous buffers. With bf16 weights the
masters are fp32. Gradients are summed over ranks and micro-batches, never averaged: the loss is normalised already.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from rljob_api import sections
from rljob_api.sections import Schedule
from rljob_trainer.learners.rank.optimizer.host_optimizer import HostOptimizer
from rljob_trainer.learners.rank.optimizer.offloadable_tensors import HostMemory, memory_of
from rljob_trainer.learners.rank.optimizer.optimizer_state import MOMENTS, master_of, weight_of
from rljob_trainer.learners.rank.optimizer.replicas import average_gradients

DECAY_STYLES = {Schedule.CONSTANT: "constant", Schedule.LINEAR: "linear", Schedule.COSINE: "cosine"}
"""Megatron's names"""


def data_parallel(chunks: Sequence[torch.nn.Module]) -> list[DistributedDataParallel]:
    """Return a model's chunks with their weights and fp32 gradients in buffers that the optimizer shares out."""
    return [_data_parallel(chunk) for chunk in chunks]


def _data_parallel(chunk: torch.nn.Module) -> DistributedDataParallel:
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    wrapped = DistributedDataParallel(chunk.config, config, chunk)
    if is_alone(wrapped.dp_cp_group.size(), wrapped.expt_dp_group.size(), chunk.config.num_moe_experts):
        # a group of one would copy all gradients and weights onto themselves
        wrapped.finish_grad_sync = wrapped.start_param_sync = _nothing
    wrapped.config.finalize_model_grads_func = _finalize
    return wrapped


def is_alone(ranks: int, expert_ranks: int, experts: int | None) -> bool:
    """Return whether no other rank holds the same weights; of experts, other ranks do."""
    return ranks == 1 and (not experts or expert_ranks == 1)


def _finalize(model: list[Any], num_tokens: object, **groups: Any) -> None:
    """Sum the gradients over ranks. The loss is normalised over the whole step, so no token count divides them."""
    finalize_model_grads(model, None, **groups)
    average_gradients(model)


def _nothing(*_: object, **__: object) -> None:
    """There is no other rank to share with."""


class Optimizer:
    """AdamW with gradient clipping and a schedule. A step with a gradient that is not finite is not taken.

    Norms and biases have no weight decay.
    """

    def __init__(
        self, chunks: Sequence[DistributedDataParallel], settings: sections.Optimizer, total_steps: int, precision: str
    ) -> None:
        """The schedule ends after `total_steps`."""
        self._chunks = chunks
        self._clip_grad = settings.clip_grad
        self.megatron, self._on_host = _megatron_optimizer(chunks, settings, precision)
        self.schedule = _schedule(self.megatron, settings, total_steps)

    def zero_gradients(self) -> None:
        """Begin the sums of a step at zero."""
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self.megatron.zero_grad()

    @torch.no_grad()
    def step(self) -> tuple[bool, float]:
        """Take a step with the summed gradients; return whether it was taken and the gradient norm before clipping.

        If the norm is not finite, weights, optimizer state and schedule stay as they are. All ranks agree.
        """
        self.megatron.prepare_grads()
        norm = self._grad_norm()
        if not math.isfinite(norm):
            return False, norm
        if norm > self._clip_grad:
            torch._foreach_mul_(self._grads(), self._clip_grad / (norm + 1e-6))
        self.schedule.step(1)
        self.megatron.step_with_ready_grads()
        return True, norm

    def put_away(self) -> None:
        """Leave none of the state on the device that belongs on the host: a checkpoint has read or written it."""
        for each in self._on_host:
            each.put_away()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step."""
        return float(self.megatron.param_groups[0]["lr"])

    def _grads(self) -> list[torch.Tensor]:
        parameters = [p for part in self.megatron.chained_optimizers for p in part.get_parameters()]
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def _grad_norm(self) -> float:
        """Return the L2 norm over all ranks. Megatron picks the gradients, so that each parameter counts once:
        replicas on tensor-parallel ranks and the second copy of tied embeddings are left out."""
        parts = self.megatron.chained_optimizers
        grads = [grad for part in parts for grad in part.get_main_grads_for_grad_norm()]
        device = self._grads()[0].device if self._grads() else torch.device("cpu")
        norms = torch.stack(torch._foreach_norm(grads)).double() if grads else torch.zeros(1, dtype=torch.float64)
        squares = norms.to(device).square().sum()
        dist.all_reduce(squares, group=self.megatron.get_grad_stats_parallel_group())
        total = squares.item()  # the one point before the update where the host waits for the GPU
        return math.sqrt(total) if math.isfinite(total) else math.nan


def optimizer_tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield what the optimizer updates and the moments that it keeps for it, of this rank's part."""
    for part in optimizer.megatron.chained_optimizers:
        for master, state in part.optimizer.state.items():
            yield master
            yield from (state[name] for name in MOMENTS)


def _megatron_optimizer(
    chunks: Sequence[DistributedDataParallel], settings: sections.Optimizer, precision: str
) -> tuple[Any, list[HostOptimizer]]:
    config = OptimizerConfig(
        optimizer="adam",
        lr=settings.learning_rate,
        min_lr=settings.min_learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.epsilon,
        bf16=precision == "bf16",
        params_dtype=torch.bfloat16 if precision == "bf16" else torch.float32,
        use_distributed_optimizer=True,
        clip_grad=0.0,  # Megatron's clipping wants CUDA tensors, and without Apex reads every norm by itself
    )
    optimizer = get_megatron_optimizer(config, list(chunks), get_standard_config_overrides(config))
    for group in optimizer.param_groups:
        group.update(fused=True, foreach=False)  # one pass over the weights instead of about ten
    for part in optimizer.chained_optimizers[1:]:
        if not part.get_parameters():
            part.optimizer.state_dict = partial(
                _state_of_nothing, optimizer.chained_optimizers[0].optimizer, part.optimizer
            )
    if settings.offload:
        memory = memory_of(next(chunks[0].parameters()).device)
        return optimizer, [_keep_on_host(part, memory) for part in optimizer.chained_optimizers]
    for part in optimizer.chained_optimizers:
        _make_moments(part)
        part._copy_main_params_to_model_params = _copy_of_masters(part)
        part._set_main_param_and_optimizer_states = partial(_set_loaded, part)
    return optimizer, []


def _state_of_nothing(beside: torch.optim.Optimizer, own: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of an optimizer without parameters: that of experts, in a stage of layers without any.

    Megatron 0.16.1 asks it for the step counter of its parameters, and gets that of the optimizer `beside` it.
    """
    step = next(iter(beside.state.values()))["step"]
    return {**type(own).state_dict(own), "state": {0: {"step": step}}}


def _keep_on_host(part: Any, memory: HostMemory) -> HostOptimizer:
    """Let masters and moments be in host memory, where checkpoints find them, too."""
    host = HostOptimizer(part, _masters_of_weights(part), memory)
    read = part._get_main_param_and_optimizer_states

    def brought(model_param: torch.Tensor) -> Any:
        host.at_hand(master_of(part, model_param))
        return read(model_param)

    def set_loaded(model_param: torch.Tensor, loaded: Mapping[str, torch.Tensor]) -> None:
        host.at_hand(master_of(part, model_param), changes=True)
        _set_loaded(part, model_param, loaded)

    part.optimizer.step = host.step
    part._copy_main_params_to_model_params = _nothing  # each chunk of masters is copied while it is there
    part._get_main_param_and_optimizer_states = brought
    part._set_main_param_and_optimizer_states = set_loaded
    return host


def _copy_of_masters(part: Any) -> Callable[[], None]:
    """Return what brings fp32 masters to the bf16 weights, in one call for all of them.

    Megatron copies them one by one; fp32 weights are their own masters, and it copies those onto themselves.
    """
    pairs = list(_masters_of_weights(part))
    weights, masters = [weight for weight, _ in pairs], [master for _, master in pairs]

    def copy() -> None:
        if masters:
            torch._foreach_copy_(weights, masters)

    return copy


def _masters_of_weights(part: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's shares of the bf16 weights, each with its master."""
    for shards, models in zip(part.shard_fp32_from_float16_groups, part.model_float16_groups, strict=True):
        for master, model in zip(shards, models, strict=True):
            yield weight_of(part, model), master


def _make_moments(part: Any) -> None:
    """Allocate AdamW's state now, for Megatron cannot save an optimizer that has not stepped yet."""
    for group in part.optimizer.param_groups:
        for master in group["params"]:
            moments = {name: torch.zeros_like(master, requires_grad=False) for name in MOMENTS}
            part.optimizer.state[master] = {
                "step": torch.zeros((), dtype=torch.float32, device=master.device),
                **moments,
            }


def _set_loaded(part: Any, model_param: torch.Tensor, loaded: Mapping[str, torch.Tensor]) -> None:
    """Take over the master weight and the moments of a parameter from a checkpoint.

    Megatron 0.16.1 does so for everything in the optimizer's state, PyTorch's step counters too, which are not in a
    checkpoint by parameter: see `restore_steps`.
    """
    master = master_of(part, model_param)
    state = part.optimizer.state[master]
    master.data.copy_(loaded["param"])
    for name in MOMENTS:
        state[name].copy_(loaded[name])


def restore_steps(optimizer: Any, steps: int) -> None:
    """Give each parameter its own step counter after loading, at `steps`.

    Megatron 0.16.1 leaves PyTorch's AdamW with one tensor for all of them, so that every parameter would add 1 to it,
    and then overwrites it with the count from before the loading. Its tests run with Apex, which has no such tensor.
    """
    for part in optimizer.chained_optimizers:
        for state in part.optimizer.state.values():
            state["step"] = torch.full_like(state["step"], steps)


def _schedule(optimizer: Any, settings: sections.Optimizer, total_steps: int) -> OptimizerParamScheduler:
    """Return the schedule; it is advanced before each step, so that the first step already learns.

    Step k of n has k / warm-up of the rate, then the decay would reach its floor at step n + 1: no step is wasted at 0.
    """
    decay_steps = total_steps + 1
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=settings.learning_rate,
        min_lr=settings.min_learning_rate,
        lr_warmup_steps=min(settings.warmup_steps, total_steps),
        lr_decay_steps=decay_steps,
        lr_decay_style=DECAY_STYLES[settings.schedule],
        start_wd=settings.weight_decay,
        end_wd=settings.weight_decay,
        wd_incr_steps=decay_steps,
        wd_incr_style="constant",
    )
