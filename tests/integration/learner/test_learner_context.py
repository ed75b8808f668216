"""Ranks that split the tokens of a micro-batch train like one that has them all, whatever the lengths."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from integration.learner.test_learner_experts import ROUTER, assert_alike
from rljob_api.sections import BalanceOver, Experts, Kl, Optimizer
from rljob_trainer.batches.packing import TrainingSequence
from rljob_trainer.learners.config import CriticSettings, LearnerConfig, LossSettings
from support.trainer.learner_data import VOCABULARY_SIZE, changed, learner_config, masked, sequences, valued
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import distil, load_and_look, save_and_look, train_and_export, train_critic
from support.trainer.naive_critic import NaiveCritic
from support.trainer.naive_learner import NaiveLearner, NaiveStep
from support.trainer.tiny_models import tiny

LOSS = LossSettings(clip_low=0.2, clip_high=0.28, entropy_coefficient=0.01, kl=Kl(coefficient=0.1), temperature=0.8)
RATES = (5e-4, 1e-3)
MOST = 2e-6
"""difference of a weight"""
LENGTHS = ((1, 1), (1, 2), (2, 1), (1, 61), (37, 1), (5, 8))
"""of prompts and responses: fewer tokens than ranks, odd numbers, and one that is much longer than the others"""


def mixed(seed: int) -> list[TrainingSequence]:
    """Return sequences of very different lengths; the first ones share their prompts in pairs."""
    random = np.random.default_rng(seed)
    alone = [
        TrainingSequence(
            tokens=tuple(random.integers(0, VOCABULARY_SIZE, prompt + response).tolist()),
            prompt_length=prompt,
            advantage=float(random.standard_normal()),
            logprobs=tuple((-6.0 + random.standard_normal(response)).tolist()),
            weight=0.0,
        )
        for prompt, response in LENGTHS
    ]
    both = [*sequences(5, seed), *alone]
    total = sum(len(each.logprobs) for each in both)
    return masked([replace(each, weight=1 / total) for each in both], seed)


STEPS = [mixed(seed) for seed in range(2)]
BUDGETS = {"packed": 10_000, "some": 64, "single": 1}

Sizes = tuple[int, int, int, int]
"""of context, tensor, pipeline and data parallelism"""


def named(sizes: Sizes) -> str:
    return "cp{}-tp{}-pp{}-dp{}".format(*sizes)


def in_layout(config: LearnerConfig, sizes: Sizes) -> tuple[int, LearnerConfig]:
    context, tensor, pipeline, data = sizes
    return context * tensor * pipeline * data, changed(config, context=context, tensor=tensor, pipeline=pipeline)


@cache
def naive_run(directory: Path) -> tuple[list[NaiveStep], dict[str, torch.Tensor]]:
    learner = NaiveLearner(directory, LOSS, learner_config(directory).optimizer, RATES)
    return [learner.step(step, True) for step in STEPS], learner.weights()


@pytest.mark.parametrize(
    ("family", "sizes", "budget"),
    [
        ("llama", (2, 1, 1, 1), "packed"),
        ("qwen3", (4, 1, 1, 1), "single"),
        ("qwen3", (2, 2, 1, 1), "some"),
        ("llama", (2, 1, 2, 1), "some"),
        ("qwen3", (2, 1, 1, 2), "some"),
        ("deepseek_v3", (2, 1, 1, 1), "packed"),
        ("deepseek_v3", (2, 2, 1, 1), "some"),
    ],
    ids=lambda value: named(value) if isinstance(value, tuple) else value,
)
def test_ranks_that_split_sequences_train_like_a_naive_hugging_face_loop(
    checkpoints: dict[tuple[str, bool], Path], family: str, sizes: Sizes, budget: str
) -> None:
    directory = checkpoints.get((family, True)) or checkpoints[family, False]
    world, config = in_layout(learner_config(directory, loss=LOSS), sizes)
    naive, wanted = naive_run(directory)
    for steps, weights in run_ranks(train_and_export, world, config, STEPS, BUDGETS[budget], True):
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5, abs=1e-6)
        assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in naive], rel=1e-5)
        torch.testing.assert_close(weights, {name: wanted[name] for name in weights}, rtol=0, atol=MOST)


def test_a_critic_of_ranks_that_split_sequences_is_that_of_one_rank(
    checkpoints: dict[tuple[str, bool], Path],
) -> None:
    directory, fitted = checkpoints["qwen3", True], valued(sequences(9, 3), 3)
    critic = CriticSettings(Optimizer(learning_rate=2e-3, epsilon=1e-4), total_steps=10, value_clip=0.08)
    config = learner_config(directory, critic=critic, context=2)
    results = run_ranks(train_critic, 2, config, [fitted], 64)
    naive = NaiveCritic(directory, critic, [critic.optimizer.learning_rate])
    wanted = naive.step(fitted)
    for (step,), _ in results:
        assert step.value_loss == pytest.approx(wanted.loss, rel=1e-5)
        assert step.critic_grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)
    _, values = results[0][1]
    ours = torch.cat([torch.from_numpy(values[index]) for index in range(len(fitted))])
    theirs = torch.cat([naive.values(sequence).detach() for sequence in fitted])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_teacher_of_ranks_that_split_sequences_says_what_one_rank_says(
    checkpoints: dict[tuple[str, bool], Path],
) -> None:
    config = learner_config(checkpoints["llama", True], loss=LOSS, teacher_dir=checkpoints["qwen3", False])
    samples = [replace(sequence, index=index) for index, sequence in enumerate(STEPS[0])]
    ((wanted, step),) = run_ranks(distil, 1, config, samples)
    for found, split in run_ranks(distil, 2, changed(config, context=2), samples):
        for index in range(len(samples)):
            np.testing.assert_allclose(found[index], wanted[index], rtol=0, atol=2e-5)
        assert split.grad_norm == pytest.approx(step.grad_norm, rel=1e-5)


@pytest.mark.parametrize(
    ("saved_by", "loaded_by", "precision", "differs"),
    [((2, 1, 1, 2), (1, 2, 1, 1), "fp32", 1e-5), ((1, 1, 2, 1), (2, 1, 1, 1), "bf16", 2e-2)],
    ids=lambda value: named(value) if isinstance(value, tuple) else str(value),
)
def test_a_layout_that_splits_sequences_goes_on_from_another_and_the_other_way_round(
    tiny_qwen3_dir: Path, tmp_path: Path, saved_by: Sizes, loaded_by: Sizes, precision: str, differs: float
) -> None:
    config = learner_config(tiny_qwen3_dir, precision=precision)
    world, own = in_layout(config, saved_by)
    saved = run_ranks(save_and_look, world, own, tmp_path / "step", STEPS[:1], STEPS[1])[0]
    world, own = in_layout(config, loaded_by)
    loaded = run_ranks(load_and_look, world, own, tmp_path / "step", STEPS[1])[0]
    for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
    assert loaded["counts"] == saved["counts"] == (1, [1.0])
    assert loaded["next"].grad_norm == pytest.approx(saved["next"].grad_norm, rel=differs)


@pytest.mark.parametrize(
    "router", [ROUTER, ROUTER.model_copy(update={"balance_over": BalanceOver.STEP})], ids=lambda each: each.balance_over
)
def test_ranks_that_split_sequences_share_out_experts(tmp_path: Path, router: Experts) -> None:
    experts = tiny("Qwen3MoeForCausalLM", tmp_path, tied=False)
    config = learner_config(
        experts, loss=LOSS, experts=router, context=2, tensor=2, expert=2,
        expert_tensor=2,
    )  # fmt: skip
    naive = NaiveLearner(experts, LOSS, config.optimizer, RATES, router)
    steps = [naive.step(STEPS[0], True)]
    assert_alike(run_ranks(train_and_export, 4, config, STEPS[:1], 64, True), steps, naive.weights())
