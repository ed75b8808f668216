"""Multi-head latent attention for packed tokens (MLA, see `rljob_api.sizing.latent`), as a Megatron self-attention.

Megatron's own turns queries and keys sequence by sequence, and has DeepSeek's YaRN in its own configuration. This one
takes what all of rljob's attention takes: angles and a kernel of the micro-batch. Names of parameters are Megatron's.

Every tensor rank computes the latents, as with Transformer Engine and in SGLang; what comes after them is split by
heads. Kernels want values as wide as keys, so values are filled up with zeros, which weigh nothing.

Axes: N computed tokens, H heads of this rank, D width of a query or key.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    checkpoint,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule

from rljob_api.sizing.latent import Latent
from rljob_trainer.learners.rank.attention.attention import PackedTokens, recomputes_attention
from rljob_trainer.learners.rank.model.norm import RmsNorm

EPSILON = 1e-6
"""of the norms of latents, instead of `rms_norm_eps`: so in DeepSeek's model and in transformers"""


class LatentAttention(MegatronModule):
    """Attention whose queries, keys and values are projected from latents."""

    def __init__(self, config: Any, layer_number: int, latent: Latent, pg_collection: Any, **_: Any) -> None:
        """Take what Megatron passes to every self-attention; mask and dropout are fixed for us."""
        super().__init__(config)
        self.layer_number, self.latent, self._group = layer_number, latent, pg_collection.tp
        settings = {"config": config, "init_method": config.init_method, "bias": False, "tp_group": self._group}
        columns = {**settings, "gather_output": False, "skip_bias_add": False}
        queries = latent.heads * latent.head
        if latent.query_rank:
            self.linear_q_down_proj = WholeLinear(config, config.hidden_size, latent.query_rank)
        else:
            self.linear_q_proj = ColumnParallelLinear(config.hidden_size, queries, **columns)
        self.linear_kv_down_proj = WholeLinear(config, config.hidden_size, latent.cached)
        if latent.query_rank:
            self.q_layernorm = RmsNorm(config, latent.query_rank, EPSILON)
            self.linear_q_up_proj = ColumnParallelLinear(latent.query_rank, queries, **columns)
        self.kv_layernorm = RmsNorm(config, latent.rank, EPSILON)
        self.linear_kv_up_proj = ColumnParallelLinear(latent.rank, latent.keys_values, **columns)
        found, rows = latent.heads * latent.value, {"input_is_parallel": True, "skip_bias_add": True}
        self.linear_proj = RowParallelLinear(found, config.hidden_size, **settings, **rows)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        packed_seq_params: PackedTokens,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return [N, 1, hidden] for [N, 1, hidden], or, where tensor ranks share out tokens, of this rank's to them."""
        packed = packed_seq_params
        assert packed.kernel is not None
        queries, keys, values = self._queries(hidden_states, packed), *self._keys_values(hidden_states, packed)
        if self.training and recomputes_attention(self.config):
            attended = checkpoint(packed.kernel, False, queries, keys, values)
        else:
            attended = packed.kernel(queries, keys, values)
        output, _bias = self.linear_proj(attended[..., : self.latent.value].flatten(1)[:, None])
        return output, None

    def _queries(self, hidden: torch.Tensor, packed: PackedTokens) -> torch.Tensor:
        """Return [N, H, D], multiplied by what YaRN sharpens scores by."""
        latent = self.latent
        if latent.query_rank:
            projected, _bias = self.linear_q_up_proj(self.q_layernorm(self.linear_q_down_proj(hidden)))
        else:
            projected, _bias = self.linear_q_proj(hidden)
        plain, turning = projected.squeeze(1).unflatten(-1, (-1, latent.head)).split([latent.plain, latent.turned], -1)
        queries = torch.cat([plain, packed.rotation(turning, packed.cos, packed.sin)], -1)
        return queries if latent.sharpness == 1.0 else queries * latent.sharpness

    def _keys_values(self, hidden: torch.Tensor, packed: PackedTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [N, H, D]; of the keys, the turned part is the same in all heads."""
        latent = self.latent
        compressed, turning = self.linear_kv_down_proj(hidden).split([latent.rank, latent.turned], -1)
        projected, _bias = self.linear_kv_up_proj(self.kv_layernorm(compressed))
        plain, values = (
            projected.squeeze(1)
            .unflatten(-1, (-1, latent.plain + latent.value))
            .split([latent.plain, latent.value], -1)
        )
        if self.config.sequence_parallel:  # both sum the gradients that ranks have by their heads
            turning = gather_from_sequence_parallel_region(turning, group=self._group)
        else:
            turning = copy_to_tensor_model_parallel_region(turning, group=self._group)
        turned = packed.rotation(turning, packed.cos, packed.sin).expand(-1, plain.shape[1], -1)
        return torch.cat([plain, turned], -1), F.pad(values, (0, latent.head - latent.value))


class WholeLinear(torch.nn.Module):
    """A matrix that every tensor rank has."""

    def __init__(self, config: Any, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # as that of a norm: see norm.py

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)
