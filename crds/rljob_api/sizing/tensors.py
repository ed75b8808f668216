"""Names and shapes of the tensors in a model's files. Pure."""

from rljob_api.sizing.latent import Latent
from rljob_api.sizing.model_shape import Shape

Axes = tuple[int, ...]
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int32": 4}
"""size of a number, by PyTorch's name of its type"""
ROUTER_BIAS = "e_score_correction_bias"
"""ending of the name of a router's bias: fp32 in every precision, and no parameter, for it has no gradient"""


def tensors_of(model: Shape) -> dict[str, Axes]:
    """Return the tensors of a checkpoint and their shapes; linear weights are outputs x inputs."""
    wanted: dict[str, Axes] = {"model.embed_tokens.weight": (model.vocabulary, model.hidden)}
    for layer in range(model.layers):
        tensors = layer_of(model, with_experts=layer >= model.dense_layers and model.experts > 0)
        wanted |= {f"model.layers.{layer}.{name}": axes for name, axes in tensors.items()}
    wanted["model.norm.weight"] = (model.hidden,)
    return wanted if model.tied else wanted | {"lm_head.weight": (model.vocabulary, model.hidden)}


def layer_of(model: Shape, *, with_experts: bool) -> dict[str, Axes]:
    """Return the tensors of one layer."""
    family, before, after = model.family, model.family.norms[0], model.family.norms[1:]
    attention = latent_attention(model.latent, model.hidden) if model.latent else grouped_attention(model)
    found: dict[str, Axes] = {f"{before}.weight": (model.hidden,)}
    found |= {f"self_attn.{name}": axes for name, axes in attention.items()}
    found["self_attn.o_proj.weight"] = (model.hidden, model.attended)
    found |= {f"{name}.weight": (model.hidden,) for name in after}
    found |= mixture_of(model) if with_experts else mlp_of(model, family.mlp, model.dense_ffn or model.ffn)
    if model.qk_norm:
        found |= {f"self_attn.{name}.weight": (model.head_dim,) for name in ("q_norm", "k_norm")}
    return found


def grouped_attention(model: Shape) -> dict[str, Axes]:
    """Return the tensors that make queries, keys and values."""
    outputs = {"q_proj": model.query, "k_proj": model.key, "v_proj": model.key}
    found: dict[str, Axes] = {f"{name}.weight": (size, model.hidden) for name, size in outputs.items()}
    return found | ({f"{name}.bias": (size,) for name, size in outputs.items()} if model.qkv_bias else {})


def latent_attention(latent: Latent, hidden: int) -> dict[str, Axes]:
    """Return the tensors that make latents, and queries, keys and values of them."""
    queries, found = latent.heads * latent.head, dict[str, Axes]()
    if latent.query_rank:
        found["q_a_proj.weight"] = (latent.query_rank, hidden)
    else:
        found["q_proj.weight"] = (queries, hidden)
    found["kv_a_proj_with_mqa.weight"] = (latent.cached, hidden)
    if latent.query_rank:
        found["q_a_layernorm.weight"] = (latent.query_rank,)
        found["q_b_proj.weight"] = (queries, latent.query_rank)
    found["kv_a_layernorm.weight"] = (latent.rank,)
    found["kv_b_proj.weight"] = (latent.keys_values, latent.rank)
    return found


def mixture_of(model: Shape) -> dict[str, Axes]:
    """Return the tensors of a layer's experts, their router, and the MLP beside them."""
    name, found = model.family.mlp, dict[str, Axes]()
    for expert in range(model.experts):
        found |= mlp_of(model, f"{name}.experts.{expert}", model.ffn)
    found[f"{name}.gate.weight"] = (model.experts, model.hidden)
    if model.family.router_bias:
        found[f"{name}.gate.{ROUTER_BIAS}"] = (model.experts,)
    return found | (mlp_of(model, f"{name}.shared_experts", model.shared_ffn) if model.shared_ffn else {})


def mlp_of(model: Shape, name: str, width: int) -> dict[str, Axes]:
    """Return the tensors of one MLP."""
    family = model.family
    up = {f"{name}.{each}.weight": (2 * width // len(family.gate_up), model.hidden) for each in family.gate_up}
    return {**up, f"{name}.{family.down}.weight": (model.hidden, width)}


def is_trained(name: str) -> bool:
    """Return whether training changes a tensor: routers keep the bias that they choose with."""
    return not name.endswith(ROUTER_BIAS)
