"""Sizes and rules of models with a shared expert and first layers without experts: GLM-4.5."""

from typing import Any

import pytest

from rljob_api.errors import ManifestError
from rljob_api.sizing.flops import training_flops
from rljob_api.sizing.memory import estimate, fullest, shared
from rljob_api.sizing.model_shape import engine_obstacles, problems, shape, tensor_obstacles
from rljob_api.sizing.tensors import tensors_of
from rljob_api.sizing.topology import topology
from support.api.sized_jobs import job

CONFIG: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 3,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "attention_bias": True,
    "use_qk_norm": True,
    "n_group": 4,
    "topk_group": 2,
    "num_nextn_predict_layers": 1,
}
ATTENTION = 2 * 64 * 128 + 2 * 64 * 64 + (128 + 2 * 64)
NORMS = 2 * 64 + 2 * 16
EXPERT = 3 * 64 * 32
DENSE = ATTENTION + NORMS + 3 * 64 * 160
ROUTED = ATTENTION + NORMS + 10 * EXPERT + 8 * 64
ENDS = 2 * 64_000 + 64


def test_first_layers_and_the_others_are_counted_apart():
    model = shape(CONFIG)

    assert model.parameters == 3 * DENSE + 5 * ROUTED + ENDS
    assert model.layer(2, 4) == (ATTENTION + 2 * EXPERT) // 2 + 8 * EXPERT // 4 + 8 * 64 + NORMS
    assert model.dense_layer(2) == (ATTENTION + 3 * 64 * 160) // 2 + NORMS


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"use_qk_norm": False}, 8 * 2 * 16),
        ({"attention_bias": False}, 8 * (128 + 2 * 64)),
        ({"num_nextn_predict_layers": 0}, 0),
        ({"n_group": 1, "topk_group": 1}, 0),
        ({"first_k_dense_replace": 2}, DENSE - ROUTED),
        ({"n_shared_experts": 1}, 5 * EXPERT),
    ],
)
def test_what_a_setting_adds(changes: dict[str, Any], difference: int):
    assert shape(CONFIG).parameters - shape(CONFIG | changes).parameters == difference


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first_k_dense_replace", 1), ("n_shared_experts", 1), ("n_group", 1), ("topk_group", 1),
        ("use_qk_norm", False), ("attention_bias", False), ("num_nextn_predict_layers", 0),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_there_has_the_value_that_transformers_takes(name: str, value: object):
    base = CONFIG | {"n_group": 1, "topk_group": 1}

    assert shape({key: base[key] for key in base if key != name}) == shape(base | {name: value})


@pytest.mark.parametrize(
    ("layers", "dense"), [((), (3, 0)), ((4, 4), (3, 0)), ((2, 6), (2, 1)), ((1, 7), (1, 2)), ((3, 5), (3, 0))]
)
def test_stages_have_the_first_layers_that_are_theirs(layers: tuple[int, ...], dense: tuple[int, int]):
    model = shape(CONFIG)
    own = layers or (4, 4)
    wanted = [dense[stage] * DENSE + (own[stage] - dense[stage]) * ROUTED for stage in (0, 1)]

    assert model.stage(0, 1, 2, layers=layers) == wanted[0] + 64_000
    assert model.stage(1, 1, 2, layers=layers) == wanted[1] + 64_000 + 64


def test_states_of_experts_are_those_of_the_layers_that_have_some(good: str):
    stages = "steps: 200\n    pipelineParallel: 2\n    expertParallel: 4\n    pipelineLayers: [7, 1]"
    model, where = shape(CONFIG), topology(job(good, ("steps: 200", stages)).spec)
    parameters, experts = fullest(model, where), 4 * model.experts_of_layer(4)

    assert parameters == model.stage(0, 1, 2, 4, layers=(7, 1))
    assert shared(model, where, parameters, 8) == 8 * (parameters - experts) // where.layout.copies + 8 * experts


@pytest.mark.parametrize(
    ("changes", "mlps"), [({}, 3 * (3 * 32 + 2 * 64) + 3 * 64), ({"intermediate_size": 640}, 1920)]
)
def test_activations_are_those_of_the_layer_that_keeps_most(good: str, changes: dict[str, Any], mlps: int):
    spec = job(good, ("steps: 200", "steps: 200\n    maxTokensPerGpu: 1000")).spec
    (found,) = (
        item for item in estimate(shape(CONFIG | changes), spec, topology(spec)).learner if item.what == "activations"
    )

    assert found.bytes == 1000 * 8 * (4 * 64 + 2 * (128 + 2 * 64) + 128 + mlps) * 2
    assert "A(3F + 2H) + 3S" in found.formula


def test_operations_are_those_of_the_parameters_that_a_token_passes():
    model = shape(CONFIG | {"attention_bias": False, "use_qk_norm": False})
    attention = 2 * 64 * 128 + 2 * 64 * 64
    passed = 8 * attention + 3 * 3 * 64 * 160 + 5 * (3 * EXPERT + 2 * EXPERT + 8 * 64)

    assert training_flops(model, 10, 0, 0) == 6 * 10 * passed


@pytest.mark.parametrize(
    ("changes", "size", "in_learner", "in_engine"),
    [
        ({}, 4, [], []),
        (
            {"intermediate_size": 162},
            4,
            ["162 MLP columns of the first layers"],
            ["162 MLP columns of the first layers"],
        ),
        ({"intermediate_size": 162, "first_k_dense_replace": 0}, 4, [], []),
        (
            {"moe_intermediate_size": 33, "n_shared_experts": 1},
            2,
            ["33 columns of the shared expert"],
            ["33 MLP columns"],
        ),
    ],
)
def test_what_tensor_ranks_cannot_split_is_named(
    changes: dict[str, Any], size: int, in_learner: list[str], in_engine: list[str]
):
    model = shape(CONFIG | changes)

    assert (tensor_obstacles(model, size), engine_obstacles(model, size)) == (in_learner, in_engine)


def test_a_size_that_does_not_divide_them_is_refused_with_the_nearest_one(good: str):
    spec = job(good, ("steps: 200", "steps: 200\n    tensorParallel: 4")).spec
    (wrong,) = problems(shape(CONFIG | {"intermediate_size": 162}), spec)

    assert (wrong.rule, wrong.nearest) == ("does not divide the model's 162 MLP columns of the first layers", "2")


def test_tensors_have_the_names_and_shapes_of_the_hub():
    found = tensors_of(shape(CONFIG))
    first = {name: axes for name, axes in found.items() if name.startswith("model.layers.2.mlp.")}
    routed = {name: axes for name, axes in found.items() if name.startswith("model.layers.3.mlp.")}

    assert first == {
        "model.layers.2.mlp.gate_proj.weight": (160, 64),
        "model.layers.2.mlp.up_proj.weight": (160, 64),
        "model.layers.2.mlp.down_proj.weight": (64, 160),
    }
    assert len(routed) == 8 * 3 + 3 + 2
    assert routed["model.layers.3.mlp.gate.weight"] == (8, 64)
    assert routed["model.layers.3.mlp.gate.e_score_correction_bias"] == (8,)
    assert routed["model.layers.3.mlp.shared_experts.up_proj.weight"] == (64, 64)
    assert routed["model.layers.3.mlp.shared_experts.down_proj.weight"] == (64, 64)
    assert routed["model.layers.3.mlp.experts.7.down_proj.weight"] == (64, 32)
    assert not [name for name in found if name.startswith("model.layers.8.")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob False is not supported, only True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings True is not supported, only False"),
        ({"first_k_dense_replace": 8}, "first_k_dense_replace 8 leaves no layer of 8 with experts"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace -1"),
        ({"n_shared_experts": 0}, "n_shared_experts 0 is not supported, only 1 or more"),
        ({"n_shared_experts": None}, "n_shared_experts 0"),
        ({"routed_scaling_factor": 0.0}, "routed_scaling_factor 0.0 is not supported, only more than 0"),
        ({"n_group": 3}, "n_group 3 does not divide n_routed_experts 8 into groups of 2 or more"),
        ({"n_group": 8}, "n_group 8 does not divide n_routed_experts 8 into groups of 2 or more"),
        ({"n_group": 0}, "n_group 0"),
        ({"topk_group": 5}, "topk_group 5 is not one of 1 to n_group 4"),
        ({"topk_group": 0}, "topk_group 0"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok 5 is not supported, only 2 to 4"),
        ({"num_experts_per_tok": 1}, "num_experts_per_tok 1"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type linear"),
    ],
)
def test_a_setting_that_learner_or_engine_cannot_compute_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ManifestError, match=message):
        shape(CONFIG | changes)


@pytest.mark.parametrize(
    "changes", [{"num_experts_per_tok": 4}, {"num_experts_per_tok": 2}, {"topk_group": 4}, {"first_k_dense_replace": 7}]
)
def test_values_up_to_the_limits_are_not(changes: dict[str, Any]):
    assert shape(CONFIG | changes).experts == 8


def test_a_size_that_is_missing_is_named():
    with pytest.raises(ManifestError, match="has no n_routed_experts"):
        shape({name: CONFIG[name] for name in CONFIG if name != "n_routed_experts"})
