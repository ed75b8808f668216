"""Gemma 3, text: layers with a window and without, four norms in each, GELU, and scaled embeddings."""

from typing import Any

import torch.nn.functional as F
from mbridge.models.qwen3 import Qwen3Bridge

from rljob_trainer.learners.rank.weights.families.local_bridge import LocalBridge

_LAYER = "model.layers.{layer_number}."


class Bridge(LocalBridge, Qwen3Bridge):
    """Gemma 3's names."""

    _ATTENTION_MAPPING = Qwen3Bridge._ATTENTION_MAPPING | {
        "self_attention.output_layernorm.weight": [_LAYER + "post_attention_layernorm.weight"]
    }
    _MLP_MAPPING = Qwen3Bridge._MLP_MAPPING | {
        "mlp.output_layernorm.weight": [_LAYER + "post_feedforward_layernorm.weight"]
    }

    def _family(self) -> dict[str, Any]:
        window, local = self.shape.local_window, self.shape.local
        windows = {"window_size": (window - 1, 0), "window_attn_skip_freq": list(local)} if window else {}
        return super()._family() | {
            "activation_func": F.gelu,  # by tanh, in the fused form
            "softmax_scale": self.hf_config.query_pre_attn_scalar**-0.5,
            **windows,
        }

    def _adjust_mapping_for_shared_weights(self) -> None:
        super()._adjust_mapping_for_shared_weights()
        self._OTHER_MAPPING["pre_mlp_layernorm.weight"] = [_LAYER + "pre_feedforward_layernorm.weight"]
