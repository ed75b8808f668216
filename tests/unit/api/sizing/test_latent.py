"""Sizes and rules of models with latent attention: DeepSeek-V3."""

import math
from typing import Any

import pytest

from rljob_api.errors import ManifestError
from rljob_api.sizing.flops import training_flops
from rljob_api.sizing.latent import sharpness
from rljob_api.sizing.memory import estimate, kv_bytes_per_token
from rljob_api.sizing.model_shape import engine_obstacles, problems, shape, tensor_obstacles
from rljob_api.sizing.tensors import is_trained, tensors_of
from rljob_api.sizing.topology import topology
from support.api.sized_jobs import job

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "mscale": 1.0, "mscale_all_dim": 0.5}
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "moe_layer_freq": 1,
    "rope_scaling": None,
}
SPLIT = 24 * 8 * 24 + 40 * 8 * (16 + 12) + 8 * 12 * 64
WHOLE = 64 * 24 + 64 * (40 + 8)
NORMS = 2 * 64 + 24 + 40


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_split_what_comes_after_the_latents(ranks: int):
    model = shape(CONFIG)

    assert model.dense_layer(ranks) == (SPLIT + 3 * 64 * 160) // ranks + WHOLE + NORMS
    assert model.layer(ranks, 8) == (SPLIT + 3 * 64 * 32) // ranks + WHOLE + NORMS + 3 * 64 * 32 + 8 * 64


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"q_lora_rank": None}, 4 * (24 * 8 * 24 + 64 * 24 + 24 - 64 * 8 * 24)),
        ({"v_head_dim": 11}, 4 * 8 * (40 + 64)),
        ({"kv_lora_rank": 39}, 4 * (64 + 1 + 8 * (16 + 12))),
        ({"num_nextn_predict_layers": 1}, 0),
        ({"rope_scaling": YARN}, 0),
        ({"head_dim": 8}, 0),
    ],
)
def test_what_a_setting_adds(changes: dict[str, Any], difference: int):
    assert shape(CONFIG).parameters - shape(CONFIG | changes).parameters == difference


@pytest.mark.parametrize("rank", [24, None])
def test_tensors_have_the_names_and_shapes_of_the_hub(rank: int | None):
    model = shape(CONFIG | {"q_lora_rank": rank})
    found = tensors_of(model)
    queries = {"q_a_proj": (24, 64), "q_a_layernorm": (24,), "q_b_proj": (192, 24)} if rank else {"q_proj": (192, 64)}
    others = {"kv_a_proj_with_mqa": (48, 64), "kv_a_layernorm": (40,), "kv_b_proj": (224, 40), "o_proj": (64, 96)}
    first = "model.layers.0.self_attn."

    assert {name.removeprefix(first): axes for name, axes in found.items() if name.startswith(first)} == {
        f"{name}.weight": axes for name, axes in (queries | others).items()
    }
    assert sum(math.prod(axes) for name, axes in found.items() if is_trained(name)) == model.parameters


def test_the_two_matrices_that_engines_join_are_neighbours():
    names = list(tensors_of(shape(CONFIG)))
    place = names.index("model.layers.1.self_attn.q_a_proj.weight")

    assert names[place + 1] == "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"


def test_a_token_takes_the_products_of_latents_and_a_pair_those_of_wide_keys_and_narrow_values():
    model = shape(CONFIG)
    mlps = 3 * 64 * 160 + 3 * (4 * 3 * 64 * 32 + 8 * 64)

    assert training_flops(model, 10, 0, 0) == 6 * 10 * (4 * (SPLIT + WHOLE) + mlps)
    assert training_flops(model, 0, 0, 5) == 3 * 5 * 4 * (2 * 8 * 24 + 2 * 8 * 12)


@pytest.mark.parametrize("engine", [1, 4])
def test_the_cache_has_a_latent_and_the_turned_part_on_every_gpu_of_an_engine(good: str, engine: int):
    spec = job(good, ("rollout:\n", f"rollout:\n    gpusPerEngine: {engine}\n")).spec

    assert kv_bytes_per_token(shape(CONFIG), spec) == 4 * (40 + 8) * 2


def test_activations_are_those_of_latents_and_of_values_as_wide_as_keys(good: str):
    spec = job(good, ("steps: 200", "steps: 200\n    maxTokensPerGpu: 1000")).spec
    items = estimate(shape(CONFIG), spec, topology(spec)).learner
    (found,) = (item for item in items if item.what == "activations")
    mlps = 3 * (3 * 32 + 2 * 64) + 3 * 32

    assert found.bytes == 1000 * 4 * (4 * 64 + 2 * (24 + 40) + 5 * 192 + 224 + mlps) * 2
    assert found.formula.startswith("maxTokensPerGpu x L x (4H + 2R + (5Q + U + A(3F + 2H) + 3S) / TP)")


def test_context_ranks_hold_the_keys_and_filled_up_values_of_all(good: str):
    longer = ("steps: 200", "steps: 200\n    maxTokensPerGpu: 1000\n    contextParallel: 2")
    specs = job(good, ("steps: 200", "steps: 200\n    maxTokensPerGpu: 1000")).spec, job(good, longer).spec
    (one, two) = (
        next(item for item in estimate(shape(CONFIG), spec, topology(spec)).learner if item.what == "activations")
        for spec in specs
    )

    assert two.bytes - one.bytes == 1000 * 4 * 2 * 192 * 2 * 2


def test_tensor_ranks_and_engines_need_heads_that_divide(good: str):
    model = shape(CONFIG | {"num_attention_heads": 6, "num_key_value_heads": 6})
    (wrong,) = problems(model, job(good, ("steps: 200", "steps: 200\n    tensorParallel: 4")).spec)

    assert tensor_obstacles(model, 4) == ["6 attention heads"]
    assert engine_obstacles(model, 4) == ["6 attention heads", "6 key-value heads"]
    assert (wrong.rule, wrong.nearest) == ("does not divide the model's 6 attention heads", "2")


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        ({}, 1.0),
        (YARN, (0.05 * math.log(4) + 1) ** 2),
        (YARN | {"factor": 1.0}, 1.0),
        (YARN | {"mscale": 2.0}, (0.05 * math.log(4) + 1) ** 2),
        (YARN | {"mscale_all_dim": 0.0}, 1.0),
    ],
)
def test_yarn_sharpens_scores_by_its_factor_for_all_dimensions(scaling: dict[str, Any], wanted: float):
    assert sharpness(scaling) == pytest.approx(wanted)


def test_transformers_5_writes_the_same_under_another_name():
    written = {name: YARN[name] for name in YARN if name != "type"} | {"rope_type": "yarn", "rope_theta": 1e4}

    assert shape(CONFIG | {"rope_parameters": written}) == shape(CONFIG | {"rope_scaling": YARN})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "kimi_k2"}, "model_type 'kimi_k2' is not supported, only 'deepseek_v3'"),
        ({"attention_bias": True}, "attention_bias True is not supported, only False"),
        ({"norm_topk_prob": False}, "norm_topk_prob False"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings True"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported, only 1"),
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported, only 'sigmoid'"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported, only 'noaux_tc'"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 4 is not supported, only num_attention_heads 8"),
        ({"head_dim": 24}, "head_dim 24 is not supported, only qk_rope_head_dim 8"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim 7 is not supported, only even numbers"),
        ({"qk_rope_head_dim": 0}, "qk_rope_head_dim 0"),
        ({"v_head_dim": 25}, "v_head_dim 25 is not supported, only 1 to 24, the width of a key"),
        ({"v_head_dim": 0}, "v_head_dim 0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type linear"),
        (
            {"rope_scaling": YARN | {"mscale": None, "factor": 0}},
            "rope_scaling has no factor and no mscale, and yarn needs factor, original_max_position_embeddings, mscale",
        ),
        ({"rope_scaling": YARN | {"attention_factor": 1.0}}, "rope_scaling has attention_factor"),
        ({"max_position_embeddings": 4097, "rope_scaling": YARN}, "max_position_embeddings is more than 4096"),
    ],
)
def test_a_setting_that_learner_or_engine_cannot_compute_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ManifestError, match=message):
        shape(CONFIG | changes)


@pytest.mark.parametrize("name", ["q_lora_rank", "kv_lora_rank", "v_head_dim", "n_group", "first_k_dense_replace"])
def test_a_size_that_is_missing_is_named(name: str):
    with pytest.raises(ManifestError, match=f"has no {name}"):
        shape({key: CONFIG[key] for key in CONFIG if key != name})


@pytest.mark.parametrize(
    ("name", "value"), [("topk_method", "'noaux_tc'"), ("scoring_func", "'sigmoid'"), ("moe_layer_freq", "1")]
)
def test_what_engines_need_beside_sizes_is_named_with_its_value(name: str, value: str):
    """transformers has no such settings, so a model that it saves lacks them."""
    with pytest.raises(ManifestError, match=f"no {name}, and engines need it: {value}"):
        shape({key: value for key, value in CONFIG.items() if key != name})


@pytest.mark.parametrize("changes", [{"v_head_dim": 24}, {"v_head_dim": 1}, {"rope_scaling": YARN}])
def test_values_up_to_the_limits_are_not_refused(changes: dict[str, Any]):
    assert shape(CONFIG | changes).latent is not None
