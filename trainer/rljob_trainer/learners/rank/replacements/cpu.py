"""Megatron-core on a machine without CUDA: the one place that knows what Megatron 0.16.1 takes for granted.

Megatron runs on gloo, but some of its code names the device "cuda" instead of asking for it. Inside `megatron_on_cpu()`
those names mean the CPU; outside, and in every other process, nothing is changed. Only a learner with device `cpu`
enters it, around each of its own calls. All but the products can go when Megatron asks `torch.accelerator` for its
device, which 0.19 does not do yet. What is replaced, and who needs it:

- `torch.cuda.current_device`: buffers of the optimizer, shapes exchanged between pipeline stages.
- `torch.cuda.synchronize`: pipeline communication and checkpoints.
- `torch.cuda.get_rng_state`, and Megatron's two functions over it: recomputation restores the state of dropout.
- `torch.cuda.Stream`, and the dispatcher's waiting for one: it brings the numbers of tokens of each expert to the CPU.
- `torch.distributed.all_gather`: gloo's refuses tensors of different lengths, which ranks that share an expert have.
- `bias_swiglu_impl`, that of experts, and `bias_geglu_impl`: Megatron's are compiled by torch.compile, which needs a
  C++ compiler at run time.
- `device="cuda"` in any torch function: the schedules' token counter, scratch tensors of the optimizer.
- `Tensor.cuda()`: tied embeddings on the last pipeline stage.
- `Tensor.type()`: the distributed optimizer sorts parameters by the names `torch.cuda.FloatTensor` and so on.
- `torch.matmul`, as a function and as a method: the products of the linear layers, by oneDNN (`matrices.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer import mlp as megatron_mlp
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch.overrides import TorchFunctionMode

from rljob_trainer.learners.rank.replacements.matrices import matmul
from rljob_trainer.learners.rank.replacements.swiglu import geglu, swiglu, weighted_swiglu

_CPU = torch.device("cpu")
_equal_all_gather = dist.all_gather


@contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Let Megatron's "cuda" mean the CPU for this thread's torch calls, and for `torch.cuda` in this process."""
    with ExitStack() as stack:
        for module, name, replacement in (
            (torch, "matmul", matmul),
            (torch.Tensor, "matmul", matmul),
            (torch.cuda, "current_device", lambda: _CPU),
            (torch.cuda, "synchronize", _nothing),
            (torch.cuda, "get_rng_state", _rng_state),
            (torch.cuda, "Stream", _nothing),
            (dist, "all_gather", all_gather),
            (MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize", _splits_as_lists),
            (megatron_mlp, "bias_swiglu_impl", swiglu),
            (megatron_mlp, "bias_geglu_impl", geglu),
            (megatron_mlp, "weighted_bias_swiglu_impl", weighted_swiglu),
            (megatron_random, "_get_cuda_rng_state", _rng_state),
            (megatron_random, "_set_cuda_rng_state", _set_rng_state),
        ):
            stack.enter_context(patch.object(module, name, replacement))
        stack.enter_context(_CudaMeansCpu())
        yield


class _CudaMeansCpu(TorchFunctionMode):
    """Rewrites the device of torch calls; other calls pass through."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not named:
            return str(function(*args)).replace("torch.", "torch.cuda.", 1)
        if "device" in named and _is_cuda(named["device"]):
            named["device"] = _CPU
        return function(*args, **named)


def _is_cuda(device: object) -> bool:
    return str(device).startswith("cuda")


def _nothing(*_: object, **__: object) -> None:
    """There is nothing to wait for."""


def all_gather(tensors: list[torch.Tensor], tensor: torch.Tensor, group: Any = None, **named: Any) -> Any:
    """Gather tensors that may differ in their first size, by an exchange that gloo has for them."""
    if len({each.shape for each in tensors}) == 1:
        return _equal_all_gather(tensors, tensor, group=group, **named)
    lengths, own = [len(each) for each in tensors], tensor.contiguous()
    gathered = own.new_empty((sum(lengths), *own.shape[1:]))
    repeated = own.repeat(len(tensors), *([1] * (own.ndim - 1)))
    dist.all_to_all_single(gathered, repeated, lengths, [len(own)] * len(tensors), group=group)
    for each, part in zip(tensors, gathered.split(lengths), strict=True):
        each.copy_(part)
    return None


def _splits_as_lists(dispatcher: Any, point: str, tokens_per_expert: Any = None) -> Any:
    """Give gloo lists, where NCCL takes the arrays that come from the GPU."""
    if point == "before_ep_alltoall":
        for name in ("input_splits", "output_splits"):
            splits = getattr(dispatcher, name)
            setattr(dispatcher, name, splits.tolist() if torch.is_tensor(splits) else splits)
    return tokens_per_expert


def _rng_state(*_: object, **__: object) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *_: object, **__: object) -> None:
    torch.set_rng_state(state)
