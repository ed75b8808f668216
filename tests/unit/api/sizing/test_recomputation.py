"""The memory of activations that are computed again in the backward pass."""

from support.api.sized_jobs import bytes_of


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
