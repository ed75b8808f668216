"""What the sizes in a `config.json` may be at all, judged before anything is built of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.foreign_text import printable

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
MOST_EXPERTS = 200_000
"""of all layers: each is three tensors with a name; DeepSeek-V3 has 15,000"""
WIDTH = 2**24
SIZES: Mapping[str, tuple[int, int]] = {
    "num_hidden_layers": (1, 1_000),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), (1, 2**16)),
    **dict.fromkeys(
        ("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim", "vocab_size"), (1, WIDTH)
    ),
    **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), (1, WIDTH)),
    "q_lora_rank": (0, WIDTH),
    "max_position_embeddings": (1, 2**31),
    "sliding_window": (0, 2**31),
    **dict.fromkeys((*EXPERTS, "num_experts_per_tok", "n_shared_experts"), (0, 2**16)),
    **dict.fromkeys(("first_k_dense_replace", "num_nextn_predict_layers"), (0, 1_000)),
}
"""of a model, by their names in `config.json`: what they may be at all"""
REQUIRED = frozenset({"num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"})
"""that must not be null"""


def wrong_sizes(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sizes that are no whole numbers of a model, before anything is built of them."""
    for name, (least, most) in SIZES.items():
        value = config.get(name)
        is_absent = name not in config or (value is None and name not in REQUIRED)
        if not is_absent and not (type(value) is int and least <= value <= most):
            shown = printable(repr(value)[:40])
            yield f"{name} {shown}, which is not a whole number from {least} to {most}"
    layers, experts = config.get("num_hidden_layers"), max(map(_whole, (config.get(name) for name in EXPERTS)))
    if experts * _whole(layers) > MOST_EXPERTS:
        yield f"that {layers} layers have {experts} experts each; at most {MOST_EXPERTS} in all are laid out"


def _whole(value: object) -> int:
    return value if type(value) is int else 0
