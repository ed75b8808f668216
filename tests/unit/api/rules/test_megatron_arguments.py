"""Arguments that pass through to Megatron are refused where the learner would ignore them, or fail with them."""

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import parse
from rljob_api.rules.arguments import MEGATRON_FREE, known
from rljob_api.rules.megatron import WITHIN

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
SELECTIVE = {"recompute_granularity": "selective"}
IGNORED = (
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "deterministic_mode",
    "fp32_residual_connection",
    "num_microbatches_with_partial_activation_checkpoints",
)
"""what the learner's own layers, embedding and schedule do not read, or cannot be called with"""


def judged(good: str, given: dict, device: str = "Gpu", **training: object) -> list[str]:
    content = yaml.safe_load(good)
    content["spec"]["training"] |= training
    content["spec"] |= {"extraArgs": {"megatron": given}, "runtime": {"device": device}}
    try:
        parse(content)
    except ManifestError as error:
        return [str(problem).removeprefix("spec.extraArgs.megatron.") for problem in error.problems]
    return []


@pytest.mark.parametrize("name", IGNORED)
def test_what_the_learner_does_not_read_cannot_be_set(good, name):
    value = 1 if known("megatron")[name].kind == "integer" else True

    (said,) = judged(good, {name: value})
    assert said.startswith(f"{name}: cannot be set: ") and not said.endswith("would make no use of it")


@pytest.mark.parametrize(
    ("given", "training"),
    [
        (FULL, {}),
        (FULL | {"recompute_method": "block", "recompute_num_layers": 3}, {}),
        ({"recompute_num_layers": 2}, {"recompute": "Full"}),
        ({"recompute_method": "block"}, {"recompute": "Full"}),
        ({"recompute_granularity": "full"}, {"recompute": "Full"}),
        (SELECTIVE, {}),
        (SELECTIVE | {"recompute_modules": ["core_attn", "mlp"]}, {}),
        (SELECTIVE | {"recompute_modules": list(WITHIN)}, {}),
        ({"deallocate_pipeline_outputs": True}, {"pipelineParallel": 2}),
        ({"deallocate_pipeline_outputs": False}, {}),
        ({"disable_bf16_reduced_precision_matmul": True}, {}),
        (FULL | {"distribute_saved_activations": True}, {"tensorParallel": 2}),
        ({"distribute_saved_activations": True}, {"tensorParallel": 2, "recompute": "Full"}),
        ({"distribute_saved_activations": False}, {}),
    ],
)
def test_what_the_learner_makes_use_of_passes(good, given, training):
    assert judged(good, given, **training) == []


NOTHING = "nothing is computed again; nearest valid: "


@pytest.mark.parametrize(
    ("given", "training", "said"),
    [
        (
            {"recompute_method": "block"},
            {},
            f"recompute_method: would not be used: {NOTHING}spec.training.recompute Full as well",
        ),
        (
            {"recompute_num_layers": 1},
            {},
            f"recompute_num_layers: would not be used: {NOTHING}spec.training.recompute Full as well",
        ),
        (
            {"recompute_modules": ["mlp"]},
            {},
            f"recompute_modules: would not be used: {NOTHING}recompute_granularity selective as well",
        ),
        (
            FULL | {"recompute_modules": ["mlp"]},
            {},
            "recompute_modules: would not be used: recompute_granularity full computes whole layers again; "
            "nearest valid: leave it out",
        ),
        (
            {"recompute_modules": ["mlp"]},
            {"recompute": "Full"},
            "recompute_modules: would not be used: recompute_granularity full computes whole layers again; "
            "nearest valid: leave it out",
        ),
        (
            {"recompute_granularity": "full"},
            {},
            'recompute_granularity: "full" needs recompute_method and recompute_num_layers; '
            "nearest valid: spec.training.recompute Full in its place",
        ),
        (
            {"recompute_granularity": "full", "recompute_method": "block"},
            {},
            'recompute_granularity: "full" needs recompute_num_layers; '
            "nearest valid: spec.training.recompute Full in its place",
        ),
        (
            SELECTIVE,
            {"recompute": "Full"},
            'recompute_granularity: "selective" contradicts spec.training.recompute Full; '
            "nearest valid: spec.training.recompute None as well",
        ),
        (
            SELECTIVE | {"recompute_method": "uniform"},
            {},
            "recompute_method: would not be used: recompute_granularity selective is about parts of a layer; "
            "nearest valid: leave it out",
        ),
        (
            SELECTIVE | {"recompute_num_layers": 1},
            {},
            "recompute_num_layers: would not be used: recompute_granularity selective is about parts of a layer; "
            "nearest valid: leave it out",
        ),
        (
            SELECTIVE | {"recompute_modules": []},
            {},
            "recompute_modules: [] is empty, so nothing is computed again; nearest valid: [core_attn]",
        ),
        (
            SELECTIVE | {"recompute_modules": ["core_attn", "core_atn"]},
            {},
            'recompute_modules: "core_atn" is none of core_attn, mlp, moe, shared_experts; nearest valid: core_attn',
        ),
        (
            {"recompute_num_layers": 0},
            {"recompute": "Full"},
            "recompute_num_layers: 0 is less than 1; nearest valid: 1",
        ),
        (
            {"deallocate_pipeline_outputs": True},
            {},
            "deallocate_pipeline_outputs: true would not be used: spec.training.pipelineParallel is 1; "
            "nearest valid: false",
        ),
        (
            {"disable_bf16_reduced_precision_matmul": True},
            {"precision": "fp32"},
            "disable_bf16_reduced_precision_matmul: true would not be used: spec.training.precision is fp32; "
            "nearest valid: false",
        ),
        (
            FULL | {"distribute_saved_activations": True},
            {},
            "distribute_saved_activations: true would not be used: spec.training.tensorParallel is 1; "
            "nearest valid: false",
        ),
        (
            SELECTIVE | {"distribute_saved_activations": True},
            {"tensorParallel": 2},
            "distribute_saved_activations: true would not be used: without spec.training.recompute Full nothing is "
            "saved for whole layers; nearest valid: false",
        ),
        (
            FULL | {"distribute_saved_activations": True},
            {"tensorParallel": 2, "sequenceParallel": True},
            "distribute_saved_activations: true divides what spec.training.sequenceParallel has divided already; "
            "nearest valid: false",
        ),
    ],
)
def test_what_the_run_would_ignore_or_fail_with_is_refused(good, given, training, said):
    assert judged(good, given, **training) == [said]


def test_products_in_bf16_on_a_cpu_are_not_those_of_cublas(good):
    said = judged(good, {"disable_bf16_reduced_precision_matmul": True}, device="Cpu")

    assert "would not be used: spec.runtime.device is Cpu; nearest valid: false" in said[0]


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("layernorm", "needs Transformer Engine"),
        ("mla_up_proj", "is of Megatron's latent attention, and the learner has its own"),
        ("moe_act", "is of the experts of Transformer Engine, and the learner has its own"),
    ],
)
def test_parts_that_megatron_alone_knows_are_refused_with_the_reason(good, module, why):
    (said,) = judged(good, SELECTIVE | {"recompute_modules": [module]})

    nearest = "core_attn, mlp, moe, shared_experts"
    assert said == f'recompute_modules: "{module}" cannot be used: it {why}; nearest valid: {nearest}'


def test_every_switch_that_is_free_has_a_place_where_it_is_ignored(good):
    switches = [name for name in MEGATRON_FREE if known("megatron")[name].kind == "boolean"]

    assert [name for name in switches if not judged(good, {name: True}, precision="fp32")] == []
