"""A transformer layer for GPUs: Megatron's modules, with the kernels of `layer_kernels.py` between them."""

from typing import Any

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer

from rljob_trainer.learners.rank.attention.attention import PackedTokens
from rljob_trainer.learners.rank.model.layer_kernels import add_rms_norm, rms_norm, swiglu


class FusedLayer(TransformerLayer):
    """Megatron's, with the same parameters under the same names; only for packed tokens, without dropout and bias.

    Megatron can compute all of it again in the backward pass, but no single module of it.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        packed_seq_params: PackedTokens,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Return [N, 1, hidden] for [N, 1, hidden]."""
        epsilon = self.config.layernorm_epsilon
        normed = rms_norm(hidden_states, self.input_layernorm.weight, epsilon)
        attended, _bias = self.self_attention(normed, packed_seq_params=packed_seq_params)
        normed, total = add_rms_norm(attended, hidden_states, self.pre_mlp_layernorm.weight, epsilon)
        wide, _bias = self.mlp.linear_fc1(normed)
        output, _bias = self.mlp.linear_fc2(swiglu(wide))
        return total + output, None
