"""The numbers of a step depend on the samples, not on how they are packed or on how the learner is spread out."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from rljob_api.sections import Kl, Recompute
from rljob_trainer.assembly.settings import RECOMPUTE
from rljob_trainer.learners.config import LossSettings
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import parallel_head, train, train_and_export, train_by_one_dnn
from support.trainer.naive_learner import NaiveLearner, NaiveStep

LOSS = LossSettings(clip_low=0.2, clip_high=0.28, entropy_coefficient=0.01, kl=Kl(coefficient=0.1), temperature=0.8)
STEPS = [sequences(12, seed) for seed in range(3)]
RATES = (5e-4, 1e-3, 9.698463e-4)
"""learning rates of the three steps: two of warm-up, then the cosine. Losses show the first two, weights the last"""
MOST = 2e-6
"""difference of a weight; a percent of the last step is several times as much"""
BUDGETS = {"packed": 10_000, "some": 64, "single": 1}


@cache
def naive_run(directory: Path, off_policy: bool) -> tuple[list[NaiveStep], dict[str, torch.Tensor]]:
    """Return the steps, and the weights after the last one."""
    learner = NaiveLearner(directory, LOSS, learner_config(directory).optimizer, RATES)
    return [learner.step(step, off_policy) for step in STEPS], learner.weights()


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_any_split_into_micro_batches_gives_the_same_step(
    checkpoints: dict[tuple[str, bool], Path], budget: int
) -> None:
    directory = checkpoints["llama", True]
    ((steps, weights),) = run_ranks(train_and_export, 1, learner_config(directory, loss=LOSS), STEPS, budget, False)
    naive, wanted = naive_run(directory, False)
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5, abs=1e-6)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in naive], rel=1e-5)
    torch.testing.assert_close(weights, {name: wanted[name] for name in weights}, rtol=0, atol=MOST)


def test_all_ranks_report_the_same_metrics(checkpoints: dict[tuple[str, bool], Path]) -> None:
    config = learner_config(checkpoints["qwen3", True], loss=LOSS, pipeline=2)
    first, second = run_ranks(train, 4, config, STEPS[:1], BUDGETS["some"], True)[1:3]
    assert replace(first[0], peak_memory_bytes=0) == replace(second[0], peak_memory_bytes=0)


def test_recomputed_activations_give_the_same_step(checkpoints: dict[tuple[str, bool], Path]) -> None:
    directory = checkpoints["qwen3", False]
    recompute = RECOMPUTE[Recompute.FULL]
    (steps,) = run_ranks(train, 1, learner_config(directory, loss=LOSS, megatron_args=recompute), STEPS, 64, True)
    assert [step.grad_norm for step in steps] == pytest.approx(
        [step.grad_norm for step in naive_run(directory, True)[0]], rel=1e-5
    )


def test_products_by_one_dnn_give_the_same_step(checkpoints: dict[tuple[str, bool], Path]) -> None:
    config = learner_config(checkpoints["llama", True], loss=LOSS)
    (fast, products), (plain, none) = (run_ranks(train_by_one_dnn, 1, config, STEPS, way)[0] for way in (True, False))
    layers, linears, uses = 2, 4, 3
    assert products >= len(STEPS) * (layers * linears + 1) * uses and none == 0
    assert [step.loss for step in fast] == pytest.approx([step.loss for step in plain], rel=1e-6, abs=1e-7)
    assert [step.grad_norm for step in fast] == pytest.approx([step.grad_norm for step in plain], rel=1e-6)


def test_a_vocabulary_shared_out_gives_the_same_logprobs_entropies_and_gradients() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(10, 16), torch.randn(49, 16)
    targets = torch.randint(0, 49, (10,))
    (alone,) = run_ranks(parallel_head, 1, hidden, weight, targets)
    first, second = run_ranks(parallel_head, 2, hidden, weight, targets)
    torch.testing.assert_close(first[:3], alone[:3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second[:3], alone[:3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat([first[3], second[3]]), alone[3], rtol=1e-5, atol=1e-5)
