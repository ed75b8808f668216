"""GLM-4, dense: gate and up are one matrix, and the outputs of attention and MLP are normed."""

from mbridge.models.qwen2 import Qwen2Bridge

from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge

_LAYER = "model.layers.{layer_number}."


class Bridge(LocalBridge, Qwen2Bridge):
    """GLM-4's names."""

    _ATTENTION_MAPPING = Qwen2Bridge._ATTENTION_MAPPING | {
        "self_attention.output_layernorm.weight": [_LAYER + "post_self_attn_layernorm.weight"]
    }
    _MLP_MAPPING = Qwen2Bridge._MLP_MAPPING | {
        "mlp.linear_fc1.weight": [_LAYER + "mlp.gate_up_proj.weight"],
        "mlp.output_layernorm.weight": [_LAYER + "post_mlp_layernorm.weight"],
    }
