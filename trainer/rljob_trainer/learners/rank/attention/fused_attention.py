"""Self-attention for GPUs: one kernel between the projection and the attention, see `query_key.py`."""

from typing import Any

import torch
from megatron.core.transformer.attention import SelfAttention

from rljob_trainer.learners.rank.attention.attention import PackedTokens
from rljob_trainer.learners.rank.attention.query_key import query_key_value


class FusedAttention(SelfAttention):
    """Megatron's, with the same parameters under the same names; only for packed tokens."""

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        packed_seq_params: PackedTokens,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return [N, 1, hidden] for [N, 1, hidden], and a bias that is not added yet."""
        packed = packed_seq_params
        assert packed.kernel is not None and packed.cos is not None and packed.sin is not None
        normed = self.config.qk_layernorm  # else Megatron has modules there that do nothing
        projected, _bias = self.linear_qkv(hidden_states)
        q, k, v = query_key_value(
            projected.squeeze(1),
            packed.cos,
            packed.sin,
            self.q_layernorm.weight if normed else None,
            self.k_layernorm.weight if normed else None,
            groups=self.num_query_groups_per_partition,
            head_dim=self.hidden_size_per_attention_head,
            epsilon=self.config.layernorm_epsilon,
        )
        attended: torch.Tensor = packed.kernel(q, k, v).flatten(1)[:, None]
        output, bias = self.linear_proj(attended)
        return output, bias
