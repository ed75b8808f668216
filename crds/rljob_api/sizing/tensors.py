"""Names and shapes of the tensors in a model's files. Pure."""

from rljob_api.sizing.model_shape import Shape

Axes = tuple[int, ...]


def tensors_of(model: Shape) -> dict[str, Axes]:
    """Return the tensors of a checkpoint and their shapes; linear weights are outputs x inputs."""
    wanted: dict[str, Axes] = {"model.embed_tokens.weight": (model.vocabulary, model.hidden)}
    for layer in range(model.layers):
        wanted |= {f"model.layers.{layer}.{name}": axes for name, axes in layer_of(model).items()}
    wanted["model.norm.weight"] = (model.hidden,)
    return wanted if model.tied else wanted | {"lm_head.weight": (model.vocabulary, model.hidden)}


def layer_of(model: Shape) -> dict[str, Axes]:
    """Return the tensors of one layer."""
    family, before, after = model.family, model.family.norms[0], model.family.norms[1:]
    outputs = {"q_proj": model.query, "k_proj": model.key, "v_proj": model.key}
    found: dict[str, Axes] = {f"{before}.weight": (model.hidden,)}
    for name, size in outputs.items():
        found[f"self_attn.{name}.weight"] = (size, model.hidden)
    if model.qkv_bias:
        found |= {f"self_attn.{name}.bias": (size,) for name, size in outputs.items()}
    found["self_attn.o_proj.weight"] = (model.hidden, model.query)
    found |= {f"{name}.weight": (model.hidden,) for name in after}
    experts = [f"{family.mlp}.experts.{expert}" for expert in range(model.experts)]
    for mlp in experts or [family.mlp]:
        found |= {
            f"{mlp}.{name}.weight": (2 * model.ffn // len(family.gate_up), model.hidden) for name in family.gate_up
        }
        found[f"{mlp}.{family.down}.weight"] = (model.hidden, model.ffn)
    if experts:
        found[f"{family.mlp}.gate.weight"] = (model.experts, model.hidden)
    if family.qk_norm:
        found |= {f"self_attn.{name}.weight": (model.head_dim,) for name in ("q_norm", "k_norm")}
    return found
