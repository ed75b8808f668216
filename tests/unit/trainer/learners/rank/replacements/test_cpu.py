"""Megatron's "cuda" means the CPU inside the context, and nothing is changed outside of it."""

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer import mlp as megatron_mlp
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

from rljob_trainer.learners.rank.replacements.cpu import megatron_on_cpu

REPLACED = (
    (torch, "matmul"),
    (torch.Tensor, "matmul"),
    (torch.cuda, "current_device"),
    (torch.cuda, "synchronize"),
    (torch.cuda, "get_rng_state"),
    (megatron_random, "_get_cuda_rng_state"),
    (megatron_random, "_set_cuda_rng_state"),
    (torch.cuda, "Stream"),
    (dist, "all_gather"),
    (MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize"),
    (megatron_mlp, "bias_swiglu_impl"),
    (megatron_mlp, "bias_geglu_impl"),
    (megatron_mlp, "weighted_bias_swiglu_impl"),
)


def test_what_names_cuda_gets_the_cpu() -> None:
    with megatron_on_cpu():
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2, device=torch.cuda.current_device()).device.type == "cpu"
        assert torch.zeros(2).cuda().device.type == "cpu"
        assert torch.zeros(2).type() == "torch.cuda.FloatTensor"
        assert torch.zeros(2).type(torch.int32).dtype == torch.int32


def test_afterwards_everything_is_as_before() -> None:
    before = [getattr(module, name) for module, name in REPLACED]
    with megatron_on_cpu():
        assert all(getattr(module, name) is not old for (module, name), old in zip(REPLACED, before, strict=True))
    assert [getattr(module, name) for module, name in REPLACED] == before
    assert torch.zeros(2).type() == "torch.FloatTensor"


def test_other_calls_pass_through_unchanged() -> None:
    with megatron_on_cpu():
        assert torch.full((2,), 3, dtype=torch.int64, device="meta").device.type == "meta"
