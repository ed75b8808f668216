"""GLM-4.5 to 4.7: a shared expert beside the others, routers with their own bias, first layers without experts."""

from typing import Any

from mbridge.models.glm4moe import GLM4MoEBridge

from rljob_trainer.learners.rank.weights.families.expert_bridge import ExpertBridge


class Bridge(ExpertBridge, GLM4MoEBridge):
    """GLM-4.5's names."""

    def _family(self) -> dict[str, Any]:
        settings, shape = self.hf_config, self.shape
        return super()._family() | {
            "moe_router_score_function": "sigmoid",
            "moe_router_dtype": "fp32",
            "moe_router_topk_scaling_factor": settings.routed_scaling_factor,
            "moe_router_num_groups": settings.n_group,
            "moe_router_group_topk": settings.topk_group,
            "moe_shared_expert_intermediate_size": shape.shared_ffn,
            "moe_layer_freq": [int(layer >= shape.dense_layers) for layer in range(shape.layers)],
        }
