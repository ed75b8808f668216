"""Names and shapes between Hugging Face and Megatron, by mbridge: what all families have in common.

mbridge expects Transformer Engine's layers; this class fits it to Megatron's own ("local") ones, whose norms are
modules by themselves and so have other names. It also repairs what mbridge 0.15.1 does not know of transformers 5.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mbridge.core import LLMBridge
from mbridge.core.util import unwrap_model

from rljob_api.sizing.families import BY_MODEL_TYPE
from rljob_api.sizing.model_shape import read


class LocalBridge(LLMBridge):
    """Fits mbridge to Megatron's local layers."""

    _DIRECT_MAPPING: dict[str, str]

    def __init__(self, hf_config: Any, dtype: torch.dtype, tensor_parallel: int, overrides: Mapping[str, Any]) -> None:
        self._overrides = overrides
        self.shape = read(hf_config.to_dict(), BY_MODEL_TYPE[hf_config.model_type])
        latent = self.shape.latent  # of its heads only a part turns, and that is the width in transformers
        hf_config.head_dim = latent.turned if latent else self.shape.head_dim  # some have none, which mbridge takes
        super().__init__(hf_config, dtype=dtype, make_vocab_size_divisible_by=tensor_parallel)
        self.vocab_size = hf_config.vocab_size
        self.padded_vocab_size = -(-hf_config.vocab_size // tensor_parallel) * tensor_parallel

    def _build_config(self) -> Any:
        settings = {**_transformer_settings(self.hf_config), **self._family(), **self._overrides}
        return self._build_base_config(**settings)

    def _family(self) -> dict[str, Any]:
        return {"add_qkv_bias": self.shape.qkv_bias, "qk_layernorm": self.shape.qk_norm}

    def _adjust_mapping_for_shared_weights(self) -> None:
        """Name the tensors. The mappings become this object's own: mbridge changes those of the class."""
        layer = "model.layers.{layer_number}."
        self._OTHER_MAPPING = {
            "pre_mlp_layernorm.weight": [layer + "post_attention_layernorm.weight"],
            "input_layernorm.weight": [layer + "input_layernorm.weight"],
        }
        self._DIRECT_MAPPING = dict(self._DIRECT_MAPPING)
        if self.hf_config.tie_word_embeddings:
            self._DIRECT_MAPPING["output_layer.weight"] = self._DIRECT_MAPPING["embedding.word_embeddings.weight"]

    def _weight_name_mapping_mcore_to_hf(self, name: str) -> list[str]:
        """Find our norms first: mbridge would look for `pre_mlp_layernorm` among the parts of the MLP."""
        if "input_layernorm" in name or "pre_mlp_layernorm" in name:
            return list(self._weight_name_mapping_other(name))
        return list(super()._weight_name_mapping_mcore_to_hf(name))

    def export(self, chunks: Sequence[torch.nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor once: with tied embeddings, mbridge yields the last stage's copy too."""
        seen: set[str] = set()
        for name, tensor in self._whole_weights(*chunks) if self._is_alone() else self.export_weights(list(chunks)):
            if name not in seen:
                seen.add(name)
                yield name, tensor.detach()

    def _is_alone(self) -> bool:
        """Return whether this rank has all of the model."""
        return bool(self.mpu.tp_size == self.mpu.pp_size == 1)

    def named(self, model: torch.nn.Module) -> Any:
        """Return the model with the names of parameters that mbridge knows."""
        return unwrap_model(model)

    def _whole_weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what `export_weights` would, without its collectives for each tensor: 5 instead of 150 ms for 272."""
        for name, weight in self.named(model).named_parameters():
            yield from zip(*self._weight_to_hf_format(name, weight), strict=True)


def _transformer_settings(hf_config: Any) -> dict[str, Any]:
    """Return what holds for every supported model. Without dropout nothing random is left in a step."""
    return {
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "activation_func": F.silu,
        "kv_channels": hf_config.head_dim,
        "variable_seq_lengths": True,
        "batch_p2p_comm": False,  # gloo deadlocks with it
        "calculate_per_token_loss": True,  # so that Megatron divides neither by micro-batches nor by ranks
        "use_cpu_initialization": True,
        "gradient_accumulation_fusion": True,  # by our wgrad.py
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
    }
