"""The memory of activations that are computed again in the backward pass."""

from rljob_api.reading.manifest import load
from rljob_api.sizing.memory import estimate
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.topology import topology

QWEN3_600M = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}


def bytes_of(good: str, *edits: tuple[str, str]) -> dict[str, int]:
    for old, new in edits:
        assert old in good
        good = good.replace(old, new)
    spec = load(good).spec
    return {item.what: item.bytes for item in estimate(shape(QWEN3_600M), spec, topology(spec)).learner}


def test_the_inputs_of_the_layers_are_kept_and_one_layer(good):
    """Qwen3-0.6B: 28 layers, hidden 1024, 16 and 8 heads of 128, MLP of 3072; in bf16."""
    of_layer = 4 * 1024 + 2 * (2048 + 2 * 1024) + 2048 + 3 * 3072
    other = ("  reward:", "  extraArgs: {megatron: {recompute_granularity: %s}}\n  reward:")
    none, full, passed, never = (
        bytes_of(good, ("steps: 200", f"steps: 200\n    maxTokensPerGpu: 2048\n    recompute: {field}"), *edits)
        for field, edits in (
            ("None", ()),
            ("Full", ()),
            ("None", ((other[0], other[1] % "full"),)),
            ("Full", ((other[0], other[1] % "selective"),)),
        )
    )
    assert none["activations"] == 2048 * 2 * 28 * of_layer
    assert full["activations"] == 2048 * 2 * (28 * 1024 + of_layer)
    assert (passed, never) == (full, none)
