"""Megatron's process groups of one rank in this process, and a small model for its optimizer. No sockets, no Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.enums import ModelType
from megatron.core.transformer import TransformerConfig

from rljob_trainer.learners.rank.replacements.cpu import megatron_on_cpu


@contextmanager
def lone_rank() -> Iterator[None]:
    """Be the only rank of a learner on the CPU."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with megatron_on_cpu():
            parallel_state.initialize_model_parallel()
            yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


class SmallModel(torch.nn.Module):
    """A matrix and a bias; their sizes are no multiples of Megatron's padding."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = TransformerConfig(
            num_layers=1, hidden_size=4, num_attention_heads=1, params_dtype=dtype, calculate_per_token_loss=True
        )
        generator = torch.Generator().manual_seed(0)
        self.matrix = torch.nn.Parameter(torch.randn(3, 4, generator=generator).to(dtype))
        self.bias = torch.nn.Parameter(torch.randn(3, generator=generator).to(dtype))

    def forward(self, tokens_N: torch.Tensor, packed: Any) -> torch.Tensor:
        """Return [N, 3] for [N, 4]."""
        return tokens_N @ self.matrix.t() + self.bias

    def sharded_state_dict(self) -> dict[str, ShardedTensor]:
        """Return the parameters as Megatron's checkpoints take them."""
        return {
            name: ShardedTensor.from_rank_offsets(name, each, replica_id=(0, 0, 0))
            for name, each in self.named_parameters()
        }

    def set_input_tensor(self, _: object) -> None:
        """Megatron's pipeline sets it; this model is its only stage."""
