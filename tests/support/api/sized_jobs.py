"""Manifests with edits, and the memory of Qwen3-0.6B in them."""

from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob
from rljob_api.sizing.memory import estimate
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.topology import topology

QWEN3_600M = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


def job(good: str, *edits: tuple[str, str]) -> RLJob:
    """Return a manifest after replacing texts."""
    for old, new in edits:
        assert old in good
        good = good.replace(old, new)
    return load(good)


def bytes_of(good: str, *edits: tuple[str, str]) -> dict[str, int]:
    """Return what each part of the learner takes."""
    spec = job(good, *edits).spec
    return {item.what: item.bytes for item in estimate(shape(QWEN3_600M), spec, topology(spec)).learner}
