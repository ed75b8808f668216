"""A critic beside the policy on real ranks: every layout computes what a plain Hugging Face model with a head does."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.sections import Optimizer
from rljob_trainer.learners.config import CriticSettings, LearnerConfig
from support.trainer.learner_data import learner_config, sequences, valued
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import (
    critic_load_train,
    critic_train_save_train,
    load_error,
    train,
    train_critic,
)
from support.trainer.naive_critic import NaiveCritic, NaiveCriticStep

OPTIMIZER = Optimizer(learning_rate=2e-3, epsilon=1e-4, weight_decay=0.1, clip_grad=0.5)
CRITIC = CriticSettings(OPTIMIZER, total_steps=10, value_clip=0.08)
STEPS = [valued(sequences(12, seed), seed) for seed in range(4)]
COMPARED = STEPS[:3]
"""as many as the policy is compared for: from the fourth on, Adam has made more than 1e-5 of rounding"""
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]


def config(directory: Path, tensor: int = 1, pipeline: int = 1, **changes: Any) -> LearnerConfig:
    return learner_config(directory, critic=CRITIC, tensor=tensor, pipeline=pipeline, **changes)


@cache
def naive(directory: Path) -> tuple[list[NaiveCriticStep], list[torch.Tensor]]:
    """Return the steps of a naive critic, and the values of the first step's sequences after all of them."""
    critic = NaiveCritic(directory, CRITIC, [OPTIMIZER.learning_rate] * len(COMPARED))
    steps = [critic.step(step) for step in COMPARED]
    return steps, [critic.values(sequence).detach() for sequence in STEPS[0]]


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("llama", False), ("qwen3", True)])
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
def test_every_layout_trains_a_critic_like_a_naive_hugging_face_loop(
    checkpoints: dict[tuple[str, bool], Path], family: str, tied: bool, layout: tuple[int, int, int]
) -> None:
    tensor, pipeline, data = layout
    directory = checkpoints[family, tied]
    results = run_ranks(train_critic, tensor * pipeline * data, config(directory, tensor, pipeline), COMPARED, 64)
    wanted, wanted_values = naive(directory)
    steps = results[0][0]
    assert [metrics for metrics, _ in results] == [steps] * len(results)
    assert [step.value_loss for step in steps] == pytest.approx([step.loss for step in wanted], rel=1e-5)
    assert [step.critic_grad_norm for step in steps] == pytest.approx([step.grad_norm for step in wanted], rel=1e-5)
    assert max(step.value_clip_fraction for step in steps) > 0.05
    found = {index: torch.from_numpy(value) for _, values in results for index, value in values[-1].items()}
    ours = torch.cat([found[index] for index in range(len(STEPS[0]))])
    torch.testing.assert_close(ours, torch.cat(wanted_values), rtol=1e-4, atol=1e-5)
    assert ours.abs().mean() > 0.01


def test_a_fresh_critic_expects_nothing(checkpoints: dict[tuple[str, bool], Path]) -> None:
    ((_, values),) = run_ranks(train_critic, 1, config(checkpoints["llama", True]), STEPS[:1], 64)
    assert all((of_sequence == 0).all() for of_sequence in values[0].values())
    assert all((of_sequence != 0).any() for of_sequence in values[1].values())


def test_a_critic_does_not_change_the_policy_beside_it(checkpoints: dict[tuple[str, bool], Path]) -> None:
    directory = checkpoints["qwen3", False]
    (alone,) = run_ranks(train, 1, learner_config(directory), STEPS[:2], 64, True)
    (beside,) = run_ranks(train, 1, config(directory), STEPS[:2], 64, True)
    assert [(step.loss, step.grad_norm) for step in alone] == [(step.loss, step.grad_norm) for step in beside]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("tensor", "pipeline", "data"), [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1)])
def test_resuming_is_bitwise_the_same_for_policy_and_critic(
    tiny_qwen3_dir: Path, tmp_path: Path, precision: str, tensor: int, pipeline: int, data: int
) -> None:
    given = config(tiny_qwen3_dir, tensor, pipeline, precision=precision)
    world_size = tensor * pipeline * data
    unbroken = run_ranks(critic_train_save_train, world_size, given, tmp_path / "step", STEPS[:2], STEPS[2:])
    resumed = run_ranks(critic_load_train, world_size, given, tmp_path / "step", STEPS[2:])
    torch.testing.assert_close(unbroken, resumed, rtol=0, atol=0)


@pytest.mark.parametrize(("saved", "loaded"), [(True, False), (False, True)])
def test_a_checkpoint_with_a_critic_and_a_learner_without_do_not_go_together(
    tiny_llama_dir: Path, tmp_path: Path, saved: bool, loaded: bool
) -> None:
    configs = {True: config(tiny_llama_dir), False: learner_config(tiny_llama_dir)}
    run_ranks(critic_train_save_train, 1, configs[saved], tmp_path / "step", [], [])
    (message,) = run_ranks(load_error, 1, configs[loaded], tmp_path / "step")
    words = {True: "a critic", False: "no critic"}
    assert f"was written with {words[saved]}, and the manifest asks for {words[loaded]}" in message
