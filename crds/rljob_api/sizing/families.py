"""The peculiarities of the architectures that the learner trains, and what it refuses in their `config.json`. Pure.

A new one is a line in `FAMILIES`, and a file in `rljob_trainer.learners.rank.weights.families`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rljob_api.sizing.latent import latent_faults

ROPES = ("default", "llama3", "linear", "yarn")
"""kinds of rotary embedding whose frequencies do not depend on the length of the sequence at hand"""
LOCAL, GLOBAL = "sliding_attention", "full_attention"
"""names of layers in `layer_types` of `config.json`: with a window, and without"""


@dataclass(frozen=True, slots=True)
class Family:
    """The peculiarities of one architecture."""

    model_type: str
    """its name in `config.json`, and of its file in `rljob_trainer.learners.rank.weights.families`"""
    qk_norm: Literal["never", "always", "optional"] = "never"
    """whether queries and keys are normalised; optional: `use_qk_norm` says so"""
    qkv_bias: Literal["never", "always", "optional"] = "never"
    """whether the projections to queries, keys and values have a bias; optional: `attention_bias` says so"""
    experts: bool = False
    """whether layers have a mixture of experts for their MLP"""
    router_bias: bool = False
    """whether routers score by sigmoid and choose with `e_score_correction_bias`, which training leaves as it is"""
    head_dim: int | None = None
    """width of a head where `config.json` has none; None: hidden size over heads"""
    windowed: bool = False
    """whether a token may see only as many tokens as `sliding_window` says"""
    default_window: int | None = None
    """`sliding_window` where `config.json` has none"""
    ropes: tuple[str, ...] = ROPES
    """kinds of rotary embedding that learner and engine know"""
    rope_pairs: bool = False
    """whether neighbouring numbers of a head are turned together"""
    rope_part: bool = False
    """whether only `partial_rotary_factor` of each head is turned"""
    latent: bool = False
    """whether queries, keys and values are projected from latents (MLA), see `latent.py`"""
    local_layers: bool = False
    """whether some layers see no more than `sliding_window` tokens, and rotate queries and keys by another base"""
    scaled_embedding: bool = False
    """whether embeddings are multiplied by the square root of the hidden size before the first layer"""
    centred_norms: bool = False
    """whether norms multiply by 1 + weight"""
    whole_embedding: bool = False
    """whether each rank of an engine holds the whole embedding"""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """settings that count where `config.json` has none, for models of this family alone"""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """settings of `config.json` that must have this value, beside those of all architectures"""
    asked: tuple[str, ...] = ()
    """those of them that SGLang wants to find in `config.json`"""
    ffn: str = "intermediate_size"
    """the setting with the width of the MLP, or of each expert's"""
    mlp: str = "mlp"
    """the MLP's name in files, and that of its matrices"""
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    gelu: bool = False
    """whether the gate is passed through GELU by tanh; else SiLU"""
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    """of each layer; four: two of inputs, and two of outputs"""

    @property
    def post_norms(self) -> bool:
        """whether outputs of attention and MLP are normed, before these are added to the residual"""
        return len(self.norms) == 4


FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family("llama"),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias="always"),
    "Qwen3ForCausalLM": Family("qwen3", qk_norm="always", head_dim=128),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        qk_norm="always",
        experts=True,
        needs={"tie_word_embeddings": False},
        ffn="moe_intermediate_size",
    ),
    "MistralForCausalLM": Family("mistral", windowed=True, default_window=4096),
    "MixtralForCausalLM": Family(
        "mixtral",
        experts=True,
        windowed=True,
        ropes=("default",),
        needs={"tie_word_embeddings": False, "router_jitter_noise": 0.0},
        mlp="block_sparse_moe",
        gate_up=("w1", "w3"),
        down="w2",
    ),
    "Glm4ForCausalLM": Family(
        "glm4",
        qkv_bias="optional",
        rope_pairs=True,
        rope_part=True,
        defaults={"attention_bias": True},
        ropes=("default",),
        gate_up=("gate_up_proj",),
        norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
    ),
    "Glm4MoeForCausalLM": Family(
        "glm4_moe",
        qk_norm="optional",
        qkv_bias="optional",
        experts=True,
        router_bias=True,
        rope_part=True,
        defaults={"first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
        ropes=("default",),
        needs={"tie_word_embeddings": False, "norm_topk_prob": True},
        ffn="moe_intermediate_size",
    ),
    "DeepseekV3ForCausalLM": Family(
        "deepseek_v3",
        experts=True,
        router_bias=True,
        rope_pairs=True,
        latent=True,
        ropes=("default", "yarn"),
        needs={
            "model_type": "deepseek_v3",
            "tie_word_embeddings": False,
            "norm_topk_prob": True,
            "moe_layer_freq": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
        asked=("moe_layer_freq", "scoring_func", "topk_method"),
        ffn="moe_intermediate_size",
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        qk_norm="always",
        head_dim=256,
        local_layers=True,
        scaled_embedding=True,
        centred_norms=True,
        whole_embedding=True,
        defaults={"tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 6},
        ropes=("default", "linear"),
        needs={
            "tie_word_embeddings": True,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
        gelu=True,
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
    ),
}
"""what the learner trains, by the architecture that `config.json` names"""
BY_MODEL_TYPE: Mapping[str, Family] = {family.model_type: family for family in FAMILIES.values()}
REFUSED: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "it sees images, and the learner trains text alone; models of the architecture "
    "Gemma3ForCausalLM (gemma-3-270m, gemma-3-1b) are trained"
}
"""why an architecture that people ask for is not trained"""
UNSUPPORTED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_sliding_window": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
"""settings of `config.json` that the learner needs to have this value"""


def needs(family: Family) -> Mapping[str, Any]:
    """Return the settings that must have the value that is given here, where `config.json` has them."""
    bias = {} if family.qkv_bias == "optional" else {"attention_bias": family.qkv_bias == "always"}
    return {**UNSUPPORTED, **bias, **family.needs}


def rope_type(config: Mapping[str, Any]) -> str:
    """Return the kind of rotary embedding; transformers 5 writes it under another name than the hub's files have.

    Where layers differ, it is that of layers without a window.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = scaling.get(GLOBAL, scaling) or {}
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def faults(config: Mapping[str, Any], family: Family) -> Iterator[str]:
    """Yield what a `config.json` says that neither learner nor engine can compute; each names its setting."""
    for name, usual in needs(family).items():
        if config.get(name, usual) != usual:
            yield f"{name} {config[name]!r} is not supported, only {usual!r}"
        elif name in family.asked and name not in config:
            yield f"no {name}, and engines need it: {usual!r}"
    if family.router_bias:
        yield from mixture_faults({**family.defaults, **config})
    if family.latent:
        yield from latent_faults(config)
    if family.local_layers:
        yield from window_faults({**family.defaults, **config})


def layer_types(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer; older files say only that each n-th layer has no window."""
    every = config["sliding_window_pattern"]
    usual = [LOCAL if (layer + 1) % every else GLOBAL for layer in range(config["num_hidden_layers"])]
    return list(config.get("layer_types") or usual)


def window_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with windows and rotary embeddings that differ between layers."""
    kinds, layers, window = layer_types(config), config["num_hidden_layers"], config["sliding_window"]
    if len(kinds) != layers:
        yield f"layer_types has {len(kinds)} entries, and num_hidden_layers is {layers}"
    if unknown := sorted(set(kinds) - {LOCAL, GLOBAL}):
        yield f"layer_types {', '.join(unknown)} is not supported, only {LOCAL} and {GLOBAL}"
    if window is None or window < 2:  # engines on GPUs take a window of 1 for none
        yield f"sliding_window {window!r} is not supported, only 2 or more"
    if config.get("use_bidirectional_attention"):
        yield f"use_bidirectional_attention {config['use_bidirectional_attention']!r} is not supported, only False"
    if not (scalar := config.get("query_pre_attn_scalar", 256)) > 0:
        yield f"query_pre_attn_scalar {scalar} is not supported, only more than 0"
    of_local = (config.get("rope_parameters") or {}).get(LOCAL) or {}
    if (kind := of_local.get("rope_type", "default")) != "default":
        yield f"rope_type {kind} of {LOCAL} is not supported, only default"


def mixture_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with shared experts, first layers and groups of a router that scores by sigmoid."""
    layers, first = config["num_hidden_layers"], config["first_k_dense_replace"]
    experts, each = config["n_routed_experts"], config["num_experts_per_tok"]
    groups, of_groups = config["n_group"], config["topk_group"]
    if not 0 <= first < layers:
        yield f"first_k_dense_replace {first} leaves no layer of {layers} with experts"
    if (shared := config["n_shared_experts"] or 0) < 1:
        yield f"n_shared_experts {shared} is not supported, only 1 or more"
    if not (scale := config.get("routed_scaling_factor", 1.0)) > 0:
        yield f"routed_scaling_factor {scale} is not supported, only more than 0"
    if groups < 1 or experts % groups or (groups > 1 and experts // groups < 2):
        yield f"n_group {groups} does not divide n_routed_experts {experts} into groups of 2 or more"
    elif not 1 <= of_groups <= groups:
        yield f"topk_group {of_groups} is not one of 1 to n_group {groups}"
    elif each not in range(2, 1 + of_groups * experts // groups):
        most = of_groups * experts // groups
        yield f"num_experts_per_tok {each} is not supported, only 2 to {most}, the experts of topk_group groups"
