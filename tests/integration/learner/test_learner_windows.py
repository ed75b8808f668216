"""Layers whose windows are shorter than the samples, however these are packed and split; in critic and teacher, too."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from integration.learner.test_learner_context import BUDGETS, LOSS, MOST, STEPS, in_layout, naive_run
from rljob_api.sections import Optimizer
from rljob_trainer.learners.config import CriticSettings
from support.trainer.family_scenarios import called, embedding_scale, one_after_the_other
from support.trainer.learner_data import learner_config, sequences, valued
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import (
    distil,
    load_and_look,
    save_and_look,
    train_and_export,
    train_critic,
)
from support.trainer.naive_critic import NaiveCritic
from support.trainer.naive_learner import NaiveLearner
from support.trainer.tiny_models import tiny, tiny_llama

WINDOW = 4
LAYOUTS = {
    1: [((1, 1, 1, 1), budget) for budget in BUDGETS],
    2: [((2, 1, 1, 1), "packed"), ((2, 1, 1, 1), "single")],
    4: [((2, 2, 1, 1), "some"), ((2, 1, 2, 1), "some"), ((4, 1, 1, 1), "packed"), ((1, 1, 2, 2), "some")],
}
"""by the number of ranks: context, tensor, pipeline and data parallelism, and the tokens of a micro-batch"""
CRITIC = CriticSettings(Optimizer(learning_rate=2e-3, epsilon=1e-4), total_steps=10, value_clip=0.08)
VALUED = valued(sequences(9, 3), 3)
SAMPLES = [replace(sequence, index=index) for index, sequence in enumerate(sequences(9, 5))]
STATES = {"saved": (1, 2, 1, 2), "loaded": (2, 1, 2, 1)}


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("Gemma3ForCausalLM", tmp_path_factory.mktemp("gemma"), sliding_window=WINDOW)


def test_samples_are_longer_than_the_window() -> None:
    longest = [max(len(sequence.tokens) for sequence in step) for step in STEPS]
    assert min(longest) > 3 * WINDOW


@pytest.mark.parametrize("world", LAYOUTS)
def test_windows_of_packed_and_split_samples_are_those_of_a_naive_hugging_face_loop(gemma: Path, world: int) -> None:
    naive, wanted = naive_run(gemma)
    cases = [
        (in_layout(learner_config(gemma, loss=LOSS), sizes)[1], STEPS, BUDGETS[budget], True)
        for sizes, budget in LAYOUTS[world]
    ]
    for results in run_ranks(one_after_the_other, world, train_and_export, cases, timeout_s=240.0):
        for case, (steps, weights) in zip(LAYOUTS[world], results, strict=True):
            assert [step.loss for step in steps] == pytest.approx([s.loss for s in naive], rel=1e-5, abs=1e-6), case
            assert [step.grad_norm for step in steps] == pytest.approx([s.grad_norm for s in naive], rel=1e-5), case
            torch.testing.assert_close(weights, {name: wanted[name] for name in weights}, rtol=0, atol=MOST)


@pytest.mark.parametrize(("precision", "differs"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_a_run_resumes_in_another_layout(gemma: Path, tmp_path: Path, precision: str, differs: float) -> None:
    config = learner_config(gemma, precision=precision)
    before, after = (in_layout(config, sizes)[1] for sizes in STATES.values())
    cases: list[tuple[Any, ...]] = [
        (save_and_look, before, tmp_path / "step", STEPS[:1], STEPS[1]),
        (load_and_look, after, tmp_path / "step", STEPS[1]),
    ]
    saved, loaded = run_ranks(one_after_the_other, 4, called, cases, timeout_s=240.0)[0]
    for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
    assert loaded["next"].grad_norm == pytest.approx(saved["next"].grad_norm, rel=differs)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def others(gemma: Path, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what one rank has to say of the scenarios of the tests below, in their order."""
    narrow = tiny("Gemma3ForCausalLM", tmp_path_factory.mktemp("narrow"), hidden_size=48)
    cases: list[tuple[Any, ...]] = [
        (distil, learner_config(llama, loss=LOSS, teacher_dir=gemma), SAMPLES),
        (train_critic, learner_config(gemma, critic=CRITIC), [VALUED], 64),
        *((embedding_scale, learner_config(narrow, precision=precision)) for precision in ("fp32", "bf16")),
    ]
    (found,) = run_ranks(one_after_the_other, 1, called, cases, timeout_s=240.0)
    return list(found)


def test_a_teacher_with_windows_says_what_hugging_faces_does(gemma: Path, llama: Path, others: list[Any]) -> None:
    found, _ = others[0]
    student, teacher = (NaiveLearner(each, LOSS, learner_config(each).optimizer, ()) for each in (llama, gemma))
    for index, sequence in enumerate(SAMPLES):
        with torch.no_grad():
            wanted = student.logprobs(student.model, sequence)[0] - teacher.logprobs(teacher.model, sequence)[0]
        np.testing.assert_allclose(found[index], wanted, rtol=0, atol=2e-5)


def test_a_critic_with_windows_is_that_of_a_naive_loop(gemma: Path, others: list[Any]) -> None:
    (step,), _ = others[1]
    wanted = NaiveCritic(gemma, CRITIC, [CRITIC.optimizer.learning_rate]).step(VALUED)
    assert step.value_loss == pytest.approx(wanted.loss, rel=1e-5)
    assert step.critic_grad_norm == pytest.approx(wanted.grad_norm, rel=1e-5)


def test_embeddings_are_scaled_by_a_number_that_is_rounded_like_the_weights(others: list[Any]) -> None:
    assert others[2:] == [pytest.approx(48**0.5, abs=1e-6), 6.9375]
