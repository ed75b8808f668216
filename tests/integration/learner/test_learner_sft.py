"""Supervised fine-tuning takes the steps of a naive loop on Hugging Face transformers, in every layout."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from rljob_trainer.algorithms.algorithm import LIKELIHOOD
from rljob_trainer.learners.config import LossSettings
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import train_and_export
from support.trainer.naive_learner import NaiveLearner, NaiveStep

LOSS = LossSettings(LIKELIHOOD, sampled=False)
STEPS = [
    [replace(each, advantage=1.0, logprobs=(0.0,) * len(each.logprobs)) for each in sequences(12, seed, 1)]
    for seed in range(3)
]
RATES = (5e-4, 1e-3, 9.698463e-4)
"""learning rates of the three steps: losses show the first two, weights the last"""
MOST = 2e-6
"""difference of a weight; a percent of the last step is several times as much"""
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]


@cache
def naive_run(directory: Path) -> tuple[list[NaiveStep], dict[str, torch.Tensor]]:
    """Return the steps, and the weights after the last one."""
    learner = NaiveLearner(directory, LOSS, learner_config(directory).optimizer, RATES)
    return [learner.step(step, off_policy=False) for step in STEPS], learner.weights()


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
def test_every_layout_learns_responses_like_a_naive_hugging_face_loop(
    tiny_qwen3_dir: Path, layout: tuple[int, int, int]
) -> None:
    tensor, pipeline, data = layout
    config = learner_config(tiny_qwen3_dir, loss=LOSS, tensor=tensor, pipeline=pipeline)
    steps, weights = run_ranks(train_and_export, tensor * pipeline * data, config, STEPS, 64, False)[-1]
    naive, wanted = naive_run(tiny_qwen3_dir)
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in naive], rel=1e-5)
    assert [step.surprise for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5)
    torch.testing.assert_close(weights, {name: wanted[name] for name in weights}, rtol=0, atol=MOST)
    assert all(step.logprob_mismatch is step.max_mismatch is None for step in steps)
