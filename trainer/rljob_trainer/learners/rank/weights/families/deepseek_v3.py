"""DeepSeek-V3 and R1, Moonlight, Kimi-K2: latent attention, and the experts that GLM-4.5 has, too."""

from rljob_trainer.learners.rank.weights.families.glm4_moe import Bridge as Glm4MoeBridge

_ATTENTION = {
    f"self_attention.{ours}.weight": [f"model.layers.{{layer_number}}.self_attn.{theirs}.weight"]
    for ours, theirs in {
        "linear_q_proj": "q_proj",
        "linear_q_down_proj": "q_a_proj",
        "linear_kv_down_proj": "kv_a_proj_with_mqa",
        "q_layernorm": "q_a_layernorm",
        "linear_q_up_proj": "q_b_proj",
        "kv_layernorm": "kv_a_layernorm",
        "linear_kv_up_proj": "kv_b_proj",
        "linear_proj": "o_proj",
    }.items()
}


class Bridge(Glm4MoeBridge):
    """DeepSeek's names."""

    _ATTENTION_MAPPING = _ATTENTION
