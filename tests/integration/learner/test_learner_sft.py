"""Supervised fine-tuning takes the steps of a naive loop on Hugging Face transformers, in every layout."""

from dataclasses import replace
from functools import cache
from math import isnan
from pathlib import Path

import pytest

from learner_data import learner_config, sequences
from learner_ranks import run_ranks
from learner_scenarios import train
from naive_learner import NaiveLearner, NaiveStep
from rljob_trainer.algorithms.algorithm import LIKELIHOOD
from rljob_trainer.learners.config import LossSettings

LOSS = LossSettings(LIKELIHOOD, sampled=False)
STEPS = [
    [replace(each, advantage=1.0, logprobs=(0.0,) * len(each.logprobs)) for each in sequences(12, seed, 1)]
    for seed in range(3)
]
RATES = (5e-4, 1e-3, 9.698463e-4)
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]


@cache
def naive_steps(directory: Path) -> list[NaiveStep]:
    learner = NaiveLearner(directory, LOSS, learner_config(directory).optimizer, RATES)
    return [learner.step(step, off_policy=False) for step in STEPS]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
def test_every_layout_learns_responses_like_a_naive_hugging_face_loop(
    tiny_qwen3_dir: Path, layout: tuple[int, int, int]
) -> None:
    tensor, pipeline, data = layout
    config = learner_config(tiny_qwen3_dir, loss=LOSS, tensor_parallel=tensor, pipeline_parallel=pipeline)
    steps = run_ranks(train, tensor * pipeline * data, config, STEPS, 64, False)[-1]
    naive = naive_steps(tiny_qwen3_dir)
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in naive], rel=1e-5)
    assert [step.surprise for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5)
    assert all(isnan(step.mismatch) and isnan(step.max_mismatch) for step in steps)
