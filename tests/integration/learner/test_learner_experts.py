"""A mixture of experts trains alike however its experts are spread over ranks, and goes on in any other way."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.sections import Experts, Kl, Recompute
from rljob_api.sizing.tensors import ROUTER_BIAS
from rljob_trainer.assembly.settings import RECOMPUTE
from rljob_trainer.learners.config import LearnerConfig, LossSettings
from support.trainer.family_scenarios import one_after_the_other, times_attended, train_grouped
from support.trainer.learner_data import changed, learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import load_and_look, save_and_look, train_and_export
from support.trainer.naive_learner import NaiveLearner, NaiveStep
from support.trainer.tiny_models import NUM_LAYERS, tiny

LOSS = LossSettings(clip_low=0.2, clip_high=0.28, entropy_coefficient=0.01, kl=Kl(coefficient=0.1), temperature=0.8)
STEPS = [sequences(11, seed) for seed in range(2)]
"""an odd number, so that data-parallel ranks have different numbers of micro-batches"""
ROUTER = Experts(balance_loss=3.0, z_loss=0.2)
"""large coefficients, so that a wrong gradient shows"""
RATE = 0.05
ADJUSTED = ROUTER.model_copy(update={"bias_update_rate": RATE})
ATTENTION_AGAIN = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
OF_ROUTERS = ("expert_load", "router_entropy", "balance_loss", "router_z_loss")
RATES = (5e-4, 1e-3)
MOST = 2e-6
"""difference of a weight"""
BUDGET = 64
"""tokens of a micro-batch"""

Sizes = tuple[int, int, int, int, int]
"""of tensor, pipeline, data, expert and expert tensor parallelism"""
LAYOUTS: list[Sizes] = [
    (2, 1, 1, 1, 1),
    (2, 1, 1, 2, 1),
    (2, 1, 1, 1, 2),
    (1, 1, 2, 2, 1),
    (1, 2, 2, 2, 1),
    (2, 1, 2, 2, 2),
    (2, 1, 2, 4, 1),
]


def named(sizes: Sizes) -> str:
    return "tp{}-pp{}-dp{}-ep{}-etp{}".format(*sizes)


def in_layout(config: LearnerConfig, sizes: Sizes) -> tuple[int, LearnerConfig]:
    """Return how many ranks there are, and their configuration."""
    tensor, pipeline, data, expert, expert_tensor = sizes
    return tensor * pipeline * data, changed(
        config,
        tensor=tensor,
        pipeline=pipeline,
        expert=expert,
        expert_tensor=expert_tensor,
    )


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("Qwen3MoeForCausalLM", tmp_path_factory.mktemp("experts"), tied=False)


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a shared expert, a first layer without experts, and a bias in its router."""
    return tiny("Glm4MoeForCausalLM", tmp_path_factory.mktemp("biased"), tied=False)


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with latent attention."""
    return tiny("DeepseekV3ForCausalLM", tmp_path_factory.mktemp("latent"))


@cache
def naive_run(directory: Path, router: Experts = ROUTER) -> tuple[list[NaiveStep], dict[str, torch.Tensor]]:
    """Return the steps of a loop over Hugging Face's model, and the weights after the last one."""
    learner = NaiveLearner(directory, LOSS, learner_config(directory).optimizer, RATES, router)
    return [learner.step(step, True) for step in STEPS], learner.weights()


@pytest.mark.parametrize("sizes", LAYOUTS, ids=named)
def test_every_layout_of_experts_trains_like_a_naive_hugging_face_loop(experts: Path, sizes: Sizes) -> None:
    world, config = in_layout(learner_config(experts, loss=LOSS, experts=ROUTER), sizes)
    ranks = run_ranks(train_and_export, world, config, STEPS, BUDGET, True)
    naive, wanted = naive_run(experts)
    assert_alike(ranks, naive, wanted)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 1, 2, 2, 2), (2, 1, 2, 4, 1)], ids=named)
def test_the_experts_of_a_gpu_train_like_a_naive_hugging_face_loop(experts: Path, sizes: Sizes) -> None:
    world, config = in_layout(learner_config(experts, loss=LOSS, experts=ROUTER), sizes)
    ranks, used = zip(*run_ranks(train_grouped, world, config, STEPS, BUDGET, True), strict=True)
    assert all(used)
    assert_alike(list(ranks), *naive_run(experts))


@pytest.mark.parametrize("sizes", [(2, 1, 2, 2, 2), (1, 2, 2, 2, 1)], ids=named)
def test_biased_routers_and_shared_experts_train_like_a_naive_hugging_face_loop(biased: Path, sizes: Sizes) -> None:
    world, config = in_layout(learner_config(biased, loss=LOSS, experts=ROUTER), sizes)
    assert_alike(run_ranks(train_and_export, world, config, STEPS, BUDGET, True), *naive_run(biased))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 1, 2, 2, 2), (1, 2, 2, 2, 1)], ids=named)
def test_biases_rise_for_experts_with_little_to_do(biased: Path, sizes: Sizes) -> None:
    world, config = in_layout(learner_config(biased, loss=LOSS, experts=ADJUSTED), sizes)
    naive, wanted = naive_run(biased, ADJUSTED)
    biases = [name for name in wanted if name.endswith(ROUTER_BIAS)]
    without = naive_run(biased)[1]
    assert biases and all((wanted[name] - without[name]).abs().max() > RATE / 2 for name in biases)
    assert naive[1].loss != naive_run(biased)[0][1].loss, "other experts are chosen"
    assert_alike(run_ranks(train_and_export, world, config, STEPS, BUDGET, True), naive, wanted)


@pytest.mark.parametrize("sizes", [(2, 1, 1, 2, 1), (2, 1, 2, 2, 2), (1, 2, 2, 2, 1)], ids=named)
def test_experts_behind_latent_attention_train_like_a_naive_hugging_face_loop(latent: Path, sizes: Sizes) -> None:
    world, config = in_layout(learner_config(latent, loss=LOSS, experts=ROUTER), sizes)
    assert_alike(run_ranks(train_and_export, world, config, STEPS, BUDGET, True), *naive_run(latent))


@pytest.mark.parametrize("again", [RECOMPUTE[Recompute.FULL], ATTENTION_AGAIN], ids=["layers", "attention"])
def test_latent_attention_that_is_computed_again_trains_alike(latent: Path, again: dict[str, Any]) -> None:
    config = learner_config(latent, loss=LOSS, experts=ROUTER, tensor=2, megatron_args=again)
    assert_alike(run_ranks(train_and_export, 2, config, STEPS, BUDGET, True), *naive_run(latent))


def test_latent_attention_that_is_computed_again_is_computed_twice(latent: Path) -> None:
    cases = [(learner_config(latent, megatron_args=again), STEPS[0]) for again in ({}, ATTENTION_AGAIN)]
    ((once, twice),) = run_ranks(one_after_the_other, 1, times_attended, cases)
    assert (once, twice) == (NUM_LAYERS, 2 * NUM_LAYERS)


def assert_alike(ranks: list[Any], naive: list[NaiveStep], wanted: dict[str, torch.Tensor]) -> None:
    """Check losses, metrics and weights on all ranks."""
    for steps, weights in ranks:
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5, abs=1e-6)
        assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in naive], rel=1e-5)
        for step, reference in zip(steps, naive, strict=True):
            measured = {name: value for name in OF_ROUTERS if (value := getattr(step, name)) is not None}
            assert measured == pytest.approx({name: reference.routers[name] for name in measured}, rel=1e-5)
            assert {"expert_load", "router_entropy", "balance_loss"} <= measured.keys()
            assert step.dropped_tokens == 0
        torch.testing.assert_close(weights, wanted, rtol=0, atol=MOST)


@pytest.mark.parametrize("sizes", [(2, 1, 2, 2, 1), (2, 1, 2, 2, 2)], ids=named)
def test_the_gradient_of_each_expert_is_that_of_one_rank(experts: Path, tmp_path: Path, sizes: Sizes) -> None:
    config = learner_config(experts)
    world, own = in_layout(config, sizes)
    found = run_ranks(save_and_look, world, own, tmp_path / "step", STEPS[:1], STEPS[1])[0]["exp_avg"]
    naive = NaiveLearner(experts, config.loss, config.optimizer, RATES).step(STEPS[0], False)
    wanted = {name: (1 - config.optimizer.beta1) * gradient for name, gradient in naive.gradients.items()}
    assert len(wanted) == len(found) == len(load_file(experts / "model.safetensors"))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("architecture", "saved_by", "loaded_by"),
    [
        ("Qwen3MoeForCausalLM", (2, 1, 2, 2, 2), (1, 1, 2, 2, 1)),
        ("Qwen3MoeForCausalLM", (1, 1, 2, 2, 1), (2, 2, 1, 2, 1)),
        ("Qwen3MoeForCausalLM", (2, 2, 1, 2, 1), (2, 1, 2, 2, 2)),
        ("Glm4MoeForCausalLM", (2, 2, 1, 2, 1), (1, 1, 2, 2, 1)),
        ("DeepseekV3ForCausalLM", (2, 2, 1, 2, 1), (1, 1, 2, 2, 1)),
        ("DeepseekV3ForCausalLM", (1, 1, 2, 2, 1), (2, 1, 1, 1, 1)),
    ],
    ids=str,
)
def test_a_layout_of_experts_goes_on_from_another(
    tmp_path: Path, architecture: str, saved_by: Sizes, loaded_by: Sizes
) -> None:
    config, after = learner_config(tiny(architecture, tmp_path / "hf", tied=False)), sequences(8, 5)
    world, own = in_layout(config, saved_by)
    saved = run_ranks(save_and_look, world, own, tmp_path / "step", STEPS, after)[0]
    world, own = in_layout(config, loaded_by)
    loaded = run_ranks(load_and_look, world, own, tmp_path / "step", after)[0]
    for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
    assert loaded["counts"] == saved["counts"] == (len(STEPS), [float(len(STEPS))])
    assert loaded["next"].loss == pytest.approx(saved["next"].loss, rel=1e-5)
    torch.testing.assert_close(loaded["after"], saved["after"], rtol=1e-5, atol=MOST)


def test_routing_without_renormalised_weights_is_that_of_hugging_face(experts: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in experts.iterdir():
        text = file.read_bytes()
        (plain / file.name).write_bytes(text.replace(b'"norm_topk_prob": true', b'"norm_topk_prob": false'))
    config = learner_config(plain, loss=LOSS, experts=ROUTER)
    ((steps, _),) = run_ranks(train_and_export, 1, config, STEPS[:1], BUDGET, True)
    naive, renormalised = naive_run(plain)[0][0], naive_run(experts)[0][0]
    assert [step.grad_norm for step in steps] == pytest.approx([naive.grad_norm], rel=1e-5)
    assert naive.grad_norm != pytest.approx(renormalised.grad_norm, rel=1e-3)
