"""Qwen3 with a mixture of experts in every layer."""

from typing import Any

from mbridge.models.qwen3moe import Qwen3MoEBridge

from rljob_trainer.learners.rank.weights.families.expert_bridge import ExpertBridge


class Bridge(ExpertBridge, Qwen3MoEBridge):
    """Qwen3-MoE's names."""

    def _family(self) -> dict[str, Any]:
        return super()._family() | {"moe_router_pre_softmax": not self.hf_config.norm_topk_prob}
