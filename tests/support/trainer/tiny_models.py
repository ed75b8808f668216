"""Small random Hugging Face checkpoints for tests: real architectures, without a download and without torch.

Everything follows from the arguments: the same call writes the same bytes. Weights are scaled so that logits differ
clearly between tokens, and norm weights are not all ones, so that a lost or swapped tensor changes the output.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rljob_api.sizing import families, model_shape
from rljob_api.sizing.families import GLOBAL, LOCAL
from rljob_api.sizing.tensors import ROUTER_BIAS, layer_of, tensors_of

DType = Literal["float32", "bfloat16"]
Weights = dict[str, npt.NDArray[np.float32]]

VOCABULARY_SIZE = 512
HIDDEN_SIZE = 64
INTERMEDIATE_SIZE = 128
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KEY_VALUE_HEADS = 2
NUM_EXPERTS = 4
EXPERT_SIZE = 32
HEAD_DIM = 16

END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", END_OF_TURN)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_llama(
    directory: Path, *, tied: bool = True, seed: int = 0, dtype: DType = "float32", layers: int = NUM_LAYERS
) -> Path:
    """Write a random Llama checkpoint with its tokenizer into `directory`, and return the directory."""
    return tiny("LlamaForCausalLM", directory, tied=tied, seed=seed, dtype=dtype, layers=layers)


def tiny_qwen3(
    directory: Path, *, tied: bool = True, seed: int = 0, dtype: DType = "float32", layers: int = NUM_LAYERS
) -> Path:
    """Like `tiny_llama`, for Qwen3: it has query and key norms."""
    return tiny("Qwen3ForCausalLM", directory, tied=tied, seed=seed, dtype=dtype, layers=layers)


def tiny(
    architecture: str,
    directory: Path,
    *,
    tied: bool = True,
    seed: int = 0,
    dtype: DType = "float32",
    layers: int = NUM_LAYERS,
    **changes: Any,
) -> Path:
    """Write a random checkpoint of an architecture that the learner trains, with `changes` of its `config.json`.

    It is `tied` where its family may be.
    """
    family = families.FAMILIES[architecture]
    tied = family.needs.get("tie_word_embeddings", tied)
    config = _config(architecture, family.model_type, tied, dtype, layers) | OWN.get(architecture, {}) | changes
    return _write(directory, config, _weights(model_shape.shape(config), seed))


FAMILIES = {family.model_type: partial(tiny, architecture) for architecture, family in families.FAMILIES.items()}
"""how to make a checkpoint of each architecture that the learner trains"""


CASES = tuple(
    (family.model_type, tied)
    for family in families.FAMILIES.values()
    for tied in (True, False)
    if family.needs.get("tie_word_embeddings", tied) == tied
)
"""each family, with tied embeddings and without, where it may have both"""

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
DEEPSEEK_YARN = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "mscale": 1.0, "mscale_all_dim": 0.7,
    "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
"""in DeepSeek's own files `mscale` and `mscale_all_dim` are the same, and angles then have no factor"""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, rope llama3": ("LlamaForCausalLM", {"rope_scaling": LLAMA3}),
    "qwen2, rope yarn": ("Qwen2ForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 4.0}}),
    "glm4, no bias": ("Glm4ForCausalLM", {"attention_bias": False}),
    "glm4_moe, one group": (
        "Glm4MoeForCausalLM",
        {"use_qk_norm": False, "attention_bias": False, "n_group": 1, "topk_group": 1, "n_shared_experts": 2},
    ),
    "glm4_moe, experts in all layers": ("Glm4MoeForCausalLM", {"first_k_dense_replace": 0}),
    "deepseek_v3, no latent of queries, one group": (
        "DeepseekV3ForCausalLM",
        {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "v_head_dim": 16},
    ),
    "deepseek_v3, rope yarn": ("DeepseekV3ForCausalLM", {"rope_scaling": DEEPSEEK_YARN}),
    "deepseek_v3, halves turned": ("DeepseekV3ForCausalLM", {"rope_interleave": False}),
    "deepseek_v3, another epsilon": ("DeepseekV3ForCausalLM", {"rms_norm_eps": 0.01}),
    "mistral, narrow heads": ("MistralForCausalLM", {"head_dim": 8, "sliding_window": None}),
    "gemma3, linear": ("Gemma3ForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "gemma3, other layers": (
        "Gemma3ForCausalLM",
        {"sliding_window": 7, "layer_types": [GLOBAL, LOCAL], "head_dim": 32, "hidden_size": 48},
    ),
}
"""settings of `config.json` that change the numbers"""


def tiny_tokenizer(directory: Path) -> Path:
    """Write a byte-level BPE tokenizer of 512 tokens, one for each digit, with a ChatML template, into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE, tokenizer.get_vocab_size()
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": END_OF_TURN,
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": list(SPECIAL_TOKENS),
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1024,
        },
    )
    return directory


def _write(directory: Path, config: dict[str, Any], weights: Weights) -> Path:
    tiny_tokenizer(directory)
    _write_json(directory / "config.json", config)
    _write_json(
        directory / "generation_config.json",
        {"eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"]},
    )
    _write_safetensors(directory / "model.safetensors", weights, config["dtype"])
    return directory


def _config(architecture: str, model_type: str, tied: bool, dtype: DType, layers: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": layers,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 1024,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "attention_dropout": 0.0,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index(END_OF_TURN),
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
        "dtype": dtype,
    }


_EXPERTS = {
    "num_experts": NUM_EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_SIZE,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
}
OWN: dict[str, dict[str, Any]] = {
    "Qwen2ForCausalLM": {"attention_bias": True},
    "Qwen3MoeForCausalLM": _EXPERTS,
    "MixtralForCausalLM": {
        "num_local_experts": NUM_EXPERTS,
        "num_experts_per_tok": 2,
        "intermediate_size": EXPERT_SIZE,
        "router_jitter_noise": 0.0,
        "router_aux_loss_coef": 0.001,
        "output_router_logits": False,
    },
    "Glm4ForCausalLM": {"attention_bias": True, "partial_rotary_factor": 0.5},
    "Glm4MoeForCausalLM": {
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "n_routed_experts": 2 * NUM_EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": EXPERT_SIZE,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
        "num_nextn_predict_layers": 0,
    },
    "DeepseekV3ForCausalLM": {
        "num_key_value_heads": NUM_HEADS,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "head_dim": 8,
        "v_head_dim": 12,
        "rope_interleave": True,
        "n_routed_experts": 2 * NUM_EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": EXPERT_SIZE,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
    },
    "Gemma3ForCausalLM": {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 24,
        "rope_local_base_freq": 100.0,
        "layer_types": None,
        "sliding_window_pattern": 2,
        "sliding_window": 4,
        "use_bidirectional_attention": False,
    },
}
"""settings that an architecture has of its own"""


def _weights(shape: model_shape.Shape, seed: int) -> Weights:
    """Return weights around zero, norms around one."""
    random = np.random.default_rng(seed)

    def tensor(name: str, axes: tuple[int, ...]) -> npt.NDArray[np.float32]:
        drawn = random.standard_normal(axes)
        if len(axes) == 2:
            return np.asarray(drawn / np.sqrt(axes[1]), np.float32)
        middle = 0.0 if shape.family.centred_norms or name.endswith(".bias") else 1.0
        return np.asarray(0.1 * drawn + middle, np.float32)

    wanted = tensors_of(shape)
    for layer in range(shape.layers, shape.layers + shape.further_layers):
        own = {"eh_proj": (shape.hidden, 2 * shape.hidden), "enorm": (shape.hidden,), "hnorm": (shape.hidden,)}
        named = {f"{name}.weight": axes for name, axes in own.items()} | layer_of(shape, with_experts=True)
        wanted |= {f"model.layers.{layer}.{name}": axes for name, axes in named.items()}
    return {name: tensor(name, axes) for name, axes in wanted.items()}


def _write_safetensors(path: Path, weights: Weights, dtype: DType) -> None:
    """Write the format by hand (length, JSON header, data): safetensors.numpy knows no bfloat16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, weight in weights.items():
        stored = "float32" if name.endswith(ROUTER_BIAS) else dtype
        code, encode = {"float32": ("F32", _float32_bytes), "bfloat16": ("BF16", _bfloat16_bytes)}[stored]
        encoded = encode(weight)
        header[name] = {
            "dtype": code,
            "shape": list(weight.shape),
            "data_offsets": [len(data), len(data) + len(encoded)],
        }
        data += encoded
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _float32_bytes(weight: npt.NDArray[np.float32]) -> bytes:
    return weight.astype("<f4").tobytes()


def _bfloat16_bytes(weight: npt.NDArray[np.float32]) -> bytes:
    """Return the weights rounded to bfloat16 (to nearest, ties to even): the upper halves of the float32 words."""
    bits = weight.astype(np.float32).view(np.uint32)
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, np.dtype("<u2")).tobytes()


def _corpus() -> list[str]:
    english = [
        "What is the sum of these numbers? Think step by step, then give the final answer on its own line.",
        "The train leaves the station at noon and arrives in the evening; how many hours does the journey take?",
        "There are several apples in the basket. She gives some of them to her brother and keeps the rest.",
        "State the final answer to the following arithmetic problem.",
        "You are a helpful assistant. The user asks a question and the assistant answers it.",
        "Calculate the greatest common divisor of the following numbers, and then their least common multiple.",
        "Yes, that is correct. No, this is wrong: the result should be larger than the number we started with.",
        "system user assistant question answer response reward",
    ]
    sums = [f"{a} + {b} = {a + b}.\n{a} - {b} = {a - b}\n{a} * {b} = {a * b}" for a in range(20) for b in range(20)]
    return english * 50 + sums


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
