"""The memory of activations that are computed again in the backward pass."""

import pytest
import yaml

from rljob_api.reading.manifest import parse
from rljob_api.sizing import recomputation
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.model_shape import problems, shape, teacher_problems
from support.api.sized_jobs import bytes_of


def test_the_inputs_of_the_layers_are_kept_and_one_layer(good):
    """Qwen3-0.6B: 28 layers, hidden 1024, 16 and 8 heads of 128, MLP of 3072; in bf16."""
    of_layer = 4 * 1024 + 2 * (2048 + 2 * 1024) + 2048 + 3 * 3072
    passing = "{recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}"
    other = ("  reward:", f"  extraArgs: {{megatron: {passing}}}\n  reward:")
    none, full, passed = (
        bytes_of(good, ("steps: 200", f"steps: 200\n    maxTokensPerGpu: 2048\n    recompute: {field}"), *edits)
        for field, edits in (
            ("None", ()),
            ("Full", ()),
            ("None", (other,)),
        )
    )
    assert none["activations"] == 2048 * 2 * 28 * of_layer
    assert full["activations"] == 2048 * 2 * (28 * 1024 + of_layer)
    assert passed == full


@pytest.mark.parametrize(
    ("parts", "has"),
    [
        (["mlp", "core_attn"], {"experts": 0}),
        (["mlp"], {"experts": 8, "dense_layers": 1}),
        (["moe"], {"experts": 8}),
        (["shared_experts"], {"experts": 8, "shared": 12}),
    ],
)
def test_parts_that_a_model_has_may_be_computed_again(good, parts, has):
    assert absent(good, parts, has) == []


@pytest.mark.parametrize(
    ("parts", "has", "lacks"),
    [
        (["core_attn", "mlp"], {"experts": 8}, "layer without experts"),
        (["moe"], {"experts": 0}, "experts"),
        (["shared_experts"], {"experts": 8}, "shared expert"),
    ],
)
def test_parts_that_a_model_does_not_have_are_refused(good, parts, has, lacks):
    assert absent(good, parts, has) == [
        f'spec.extraArgs.megatron.recompute_modules: "{parts[-1]}" is of no use: the model has no {lacks}'
    ]


def absent(good, parts, has):
    spec = loaded(good, {"recompute_granularity": "selective", "recompute_modules": parts})
    sizes = {"experts": 0, "dense_layers": 0, "shared": 0} | has
    return list(map(str, recomputation.absent_parts(spec, **sizes)))


@pytest.mark.parametrize(
    ("number", "training", "said"),
    [
        (2, {}, None),
        (27, {}, "27 does not divide the model's 28 layers; nearest valid: 28"),
        (1, {}, None),
        (3, {}, "3 does not divide the model's 28 layers; nearest valid: 2"),
        (
            5,
            {"pipelineParallel": 2},
            "5 does not divide the model's 14 layers of a pipeline stage's chunk; nearest valid: 7",
        ),
        (7, {"pipelineParallel": 2}, None),
        (
            4,
            {"pipelineParallel": 2, "virtualPipeline": 2},
            "4 does not divide the model's 7 layers of a pipeline stage's chunk; nearest valid: 1",
        ),
        (
            5,
            {"pipelineParallel": 2, "pipelineLayers": [18, 10]},
            "5 does not divide the model's 18 layers of a pipeline stage's chunk; nearest valid: 2",
        ),
        (2, {"pipelineParallel": 2, "pipelineLayers": [18, 10]}, None),
    ],
)
def test_groups_of_layers_fill_a_stage(good, number, training, said):
    spec = loaded(good, {"recompute_num_layers": number}, recompute="Full", **training)
    found = recomputation.uneven_groups(spec, 28)

    assert found is None if said is None else str(found) == f"spec.extraArgs.megatron.recompute_num_layers: {said}"


@pytest.mark.parametrize("given", [{"recompute_method": "block", "recompute_num_layers": 3}, {}])
def test_only_groups_of_one_size_have_to_fill_a_stage(good, given):
    assert recomputation.uneven_groups(loaded(good, given, recompute="Full"), 28) is None


def test_layers_that_do_not_divide_at_all_are_another_problem(good):
    spec = loaded(good, {"recompute_num_layers": 2}, recompute="Full", pipelineParallel=8)
    assert recomputation.uneven_groups(spec, 28) is None


def test_the_layers_of_student_and_teacher_are_looked_at(good):
    student, teacher = shape(ON_THE_HUB["Qwen/Qwen3-0.6B"]), shape(ON_THE_HUB["Qwen/Qwen3-4B"])
    spec = loaded(good, {"recompute_num_layers": 7}, recompute="Full")
    where = "spec.extraArgs.megatron.recompute_num_layers: "

    assert not any(where in str(each) for each in problems(student, spec))
    assert f"{where}7 does not divide the teacher's 36 layers; nearest valid: 6" in map(
        str, teacher_problems(teacher, student, spec)
    )
    moe = loaded(good, {"recompute_granularity": "selective", "recompute_modules": ["moe"]})
    assert any("is of no use: the model has no experts" in str(each) for each in problems(student, moe))


def loaded(good, megatron, **training):
    content = yaml.safe_load(good)
    content["spec"]["training"] |= training
    content["spec"]["extraArgs"] = {"megatron": megatron}
    return parse(content).spec
