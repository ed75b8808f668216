"""Sizes, memory and rules of models with a mixture of experts."""

import pytest
import yaml

from rljob_api.errors import ManifestError
from rljob_api.reading.manifest import load, parse
from rljob_api.sections import RLJob
from rljob_api.sizing.known_models import ON_THE_HUB
from rljob_api.sizing.memory import estimate
from rljob_api.sizing.model_shape import problems, shape
from rljob_api.sizing.topology import topology

DENSE = ON_THE_HUB["Qwen/Qwen3-0.6B"]
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
BIASED = ON_THE_HUB["zai-org/GLM-4.5-Air"]
EXPERT = 3 * 64 * 32
"""parameters of one"""


def training(good: str, **fields: int) -> RLJob:
    """The good job with other fields of its training."""
    content = yaml.safe_load(good)
    content["spec"]["training"] |= fields
    return parse(content)


def test_a_rank_holds_its_share_of_the_experts_and_all_of_the_router():
    model = shape(EXPERTS)
    attention, norms, router = 4 * 64 * 128, 2 * 64 + 2 * 16, 8 * 64

    assert model.layer(2, 4) == attention // 2 + 8 * EXPERT // 4 + router + norms
    assert model.stage(0, 1, 1) == model.parameters == 4 * (attention + 8 * EXPERT + router + norms) + 64 + 2 * 64_000


def test_ranks_share_the_optimizer_of_experts_with_those_that_hold_the_same(good):
    spec = training(good, tensorParallel=2, expertParallel=4, maxTokensPerGpu=1000).spec
    model = shape(EXPERTS)
    where = topology(spec)
    found = {item.what: item for item in estimate(model, spec, where).learner}
    rank, experts = model.stage(0, 2, 1, 4), 4 * 8 * EXPERT // 4
    mlps = 2 * (3 * 32 + 2 * 64)
    per_token = 4 * (4 * 64 + (2 * (128 + 2 * 128) + 128 + mlps) // 2)

    assert (where.layout.data, where.layout.expert_data) == (4, 2)
    assert found["weights"].bytes == 2 * rank
    assert found["Adam moments"].bytes == 8 * (rank - experts) // 4 + 8 * experts // 2
    assert found["master weights"].bytes == 4 * (rank - experts) // 4 + 4 * experts // 2
    assert found["Adam moments"].formula == "(P - X) x 8 / DP + X x 8 / XDP, distributed optimizer"
    assert found["activations"].bytes == 1000 * per_token * 2
    assert "A(3F + 2H)" in found["activations"].formula


@pytest.mark.parametrize(
    ("config", "line", "said"),
    [
        (EXPERTS, "expertParallel: 8", None),
        ({**EXPERTS, "num_local_experts": 6}, "expertParallel: 4", "4 does not divide the model's 6 experts; nearest"),
        ({**EXPERTS, "moe_intermediate_size": 33}, "expertTensorParallel: 2", "2 does not divide the model's 33 MLP"),
        ({**EXPERTS, "intermediate_size": 129}, "tensorParallel: 2", None),
        (
            DENSE,
            "expertParallel: 2",
            "spec.training.expertParallel: 2 is of no use: the model has no experts; nearest valid: 1",
        ),
        (
            DENSE,
            "expertTensorParallel: 2",
            "spec.training.expertTensorParallel: 2 is of no use: the model has no experts",
        ),
        (DENSE, "experts: {zLoss: 0.1}", "spec.training.experts.zLoss: 0.1 is of no use: the model has no experts"),
        (DENSE, "experts: {zLoss: 0}", None),
        (EXPERTS, "experts: {zLoss: 0.1}", None),
        (
            EXPERTS,
            "experts: {biasUpdateRate: 0.1}",
            "spec.training.experts.biasUpdateRate: 0.1 is of no use: the model's routers have no bias;"
            " training.experts.balanceLoss balances its experts; nearest valid: 0",
        ),
        (EXPERTS, "experts: {biasUpdateRate: 0}", None),
        (BIASED, "experts: {biasUpdateRate: 0.1}", None),
    ],
)
def test_sizes_of_expert_parallelism_divide_the_experts_and_are_of_use(good, config, line, said):
    found = problems(shape(config), training(good, **yaml.safe_load(line)).spec)

    assert [said in str(problem) for problem in found] == ([True] if said else [])
    assert all(str(problem).startswith("spec.training.") for problem in found)


@pytest.mark.parametrize(("config", "refused"), [(DENSE, True), (EXPERTS, False)])
def test_an_argument_for_experts_is_refused_where_the_engine_would_ignore_it(good, config, refused):
    spec = load(f"{good}\n  extraArgs: {{sglang: {{moe-runner-backend: triton}}}}").spec
    ignored = "spec.extraArgs.sglang.moe-runner-backend: is of no use: the model has no experts"

    assert [str(problem) for problem in problems(shape(config), spec)] == ([ignored] if refused else [])


@pytest.mark.parametrize(("name", "value"), [("mlp_only_layers", [1]), ("decoder_sparse_step", 2)])
def test_layers_without_experts_beside_others_are_refused(name, value):
    with pytest.raises(ManifestError, match=name):
        shape({**EXPERTS, name: value})
