"""Names and shapes between Hugging Face and Megatron, by mbridge, for the families that we support.

mbridge expects Transformer Engine's layers; these subclasses fit it to Megatron's own ("local") ones, whose norms are
modules by themselves and so have other names. They also repair what mbridge 0.15.1 does not know of transformers 5.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from mbridge.core import LLMBridge
from mbridge.core.util import unwrap_model
from mbridge.models.llama import LLaMABridge
from mbridge.models.qwen3 import Qwen3Bridge as _Qwen3Bridge
from transformers import AutoConfig

from rljob_trainer.learners.config import LearnerConfig
from rljob_trainer.learners.errors import UnsupportedModelError
from rljob_trainer.learners.rope import rope_type, supported_ropes


class _LocalBridge(LLMBridge):
    """Fits mbridge to Megatron's local layers."""

    _DIRECT_MAPPING: dict[str, str]

    def __init__(self, hf_config: Any, dtype: torch.dtype, tensor_parallel: int, overrides: Mapping[str, Any]) -> None:
        self._overrides = overrides
        super().__init__(hf_config, dtype=dtype, make_vocab_size_divisible_by=tensor_parallel)
        self.vocab_size = hf_config.vocab_size
        self.padded_vocab_size = -(-hf_config.vocab_size // tensor_parallel) * tensor_parallel

    def _build_config(self) -> Any:
        return self._build_base_config(**self._family(), **_transformer_settings(self.hf_config), **self._overrides)

    def _family(self) -> dict[str, Any]:
        raise NotImplementedError

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

    def export(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each tensor once: with tied embeddings, mbridge yields the last stage's copy too."""
        seen: set[str] = set()
        alone = self.mpu.tp_size == self.mpu.pp_size == 1
        for name, tensor in self._whole_weights(model) if alone else self.export_weights([model]):
            if name not in seen:
                seen.add(name)
                yield name, tensor.detach()

    def _whole_weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what `export_weights` would, without its collectives for each tensor: 5 instead of 150 ms for 272."""
        for name, weight in unwrap_model(model).named_parameters():
            yield from zip(*self._weight_to_hf_format(name, weight), strict=True)


class LlamaBridge(_LocalBridge, LLaMABridge):
    def _family(self) -> dict[str, Any]:
        return {"add_qkv_bias": bool(self.hf_config.attention_bias), "qk_layernorm": False}


class Qwen3Bridge(_LocalBridge, _Qwen3Bridge):
    def _family(self) -> dict[str, Any]:
        return {"add_qkv_bias": bool(self.hf_config.attention_bias), "qk_layernorm": True}


_BRIDGES: dict[str, type[_LocalBridge]] = {"llama": LlamaBridge, "qwen3": Qwen3Bridge}


def bridge(config: LearnerConfig) -> _LocalBridge:
    """Return the bridge of the checkpoint. Raises UnsupportedModelError; needs Megatron's process groups."""
    hf_config = AutoConfig.from_pretrained(config.checkpoint_dir)
    check(hf_config, config)
    overrides = {**_device_settings(config), **config.megatron_args}
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    return _BRIDGES[hf_config.model_type](hf_config, dtype, config.tensor_parallel, overrides)


def check(hf_config: Any, config: LearnerConfig) -> None:
    """Raise UnsupportedModelError if the model or the layout is not one that we can train."""
    if hf_config.model_type not in _BRIDGES:
        raise UnsupportedModelError(
            f"{config.checkpoint_dir}: model type {hf_config.model_type!r} is not supported; "
            f"supported are {', '.join(sorted(_BRIDGES))}"
        )
    for problem in _problems(hf_config):
        raise UnsupportedModelError(f"{config.checkpoint_dir}: {problem}")
    heads, groups, layers = (
        hf_config.num_attention_heads,
        hf_config.num_key_value_heads,
        hf_config.num_hidden_layers,
    )
    sizes = [size for size in range(1, heads + 1) if heads % size == 0 and groups % size == 0]
    if config.tensor_parallel not in sizes:
        raise UnsupportedModelError(
            f"tensorParallel={config.tensor_parallel} does not divide {heads} attention heads and {groups} key-value "
            f"heads; use one of {', '.join(map(str, sizes))}"
        )
    if layers % config.pipeline_parallel:
        valid = [size for size in range(1, layers + 1) if layers % size == 0]
        raise UnsupportedModelError(
            f"pipelineParallel={config.pipeline_parallel} does not divide {layers} layers; "
            f"use one of {', '.join(map(str, valid))}"
        )


def _problems(hf_config: Any) -> Iterator[str]:
    if hf_config.hidden_act != "silu":
        yield f"activation {hf_config.hidden_act!r} is not supported, only 'silu'"
    if getattr(hf_config, "mlp_bias", False):
        yield "mlp_bias is not supported"
    if getattr(hf_config, "use_sliding_window", False):
        yield "use_sliding_window is not supported"
    if rope_type(hf_config) not in supported_ropes():
        yield f"rope type {rope_type(hf_config)!r} is not supported; supported are {', '.join(supported_ropes())}"


def _transformer_settings(hf_config: Any) -> dict[str, Any]:
    """Return what holds for every model of ours. Without dropout nothing random is left in a step."""
    return {
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "activation_func": F.silu,
        "kv_channels": getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads,
        "sequence_parallel": False,
        "variable_seq_lengths": True,
        "batch_p2p_comm": False,  # gloo deadlocks with it
        "calculate_per_token_loss": True,  # so that Megatron divides neither by micro-batches nor by ranks
        "use_cpu_initialization": True,
        "gradient_accumulation_fusion": True,  # by our wgrad.py
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
    }


def _device_settings(config: LearnerConfig) -> dict[str, Any]:
    """Fuse by torch.compile where it pays; on a CPU it would need a C++ compiler, and cpu.py puts ours in its place."""
    return {"bias_activation_fusion": True, "bias_dropout_fusion": config.device == "cuda"}
