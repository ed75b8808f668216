"""What the environment wrote is context: the learner takes no gradient from it, under any layout."""

from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.sections import Kl
from rljob_trainer.learners.config import LossSettings
from support.trainer.learner_data import learner_config, masked, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import head_gradients, train
from support.trainer.naive_learner import NaiveLearner
from support.trainer.tiny_models import tiny_llama

LOSS = LossSettings(clip_low=0.2, clip_high=0.28, entropy_coefficient=0.01, kl=Kl(coefficient=0.1), temperature=0.8)
STEPS = [masked(sequences(12, seed), seed) for seed in range(2)]
RATES = (5e-4, 1e-3)
"""learning rates of two steps of warm-up"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"), tied=False)


@pytest.mark.parametrize(
    "layout", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)], ids="tp{0[0]}-pp{0[1]}-dp{0[2]}".format
)
def test_every_layout_trains_on_the_models_tokens_alone(checkpoint: Path, layout: tuple[int, int, int]) -> None:
    tensor, pipeline, data = layout
    config = learner_config(checkpoint, loss=LOSS, tensor=tensor, pipeline=pipeline)
    naive = NaiveLearner(checkpoint, LOSS, config.optimizer, RATES)
    wanted = [naive.step(step, True) for step in STEPS]
    steps = run_ranks(train, tensor * pipeline * data, config, STEPS, 64, True)[-1]
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in wanted], rel=1e-5, abs=1e-6)
    assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in wanted], rel=1e-5)
    assert [step.response_tokens for step in steps] == [sum(len(each.logprobs) for each in step) for step in STEPS]


def test_tokens_of_the_environment_have_a_gradient_of_exactly_zero(checkpoint: Path) -> None:
    given = [replace(each, advantage=1.0) for each in STEPS[0]]
    (result,) = run_ranks(head_gradients, 1, learner_config(checkpoint, loss=LOSS), given)
    _, gradient_N_H, trained = result
    others = sorted(set(range(len(gradient_N_H))) - set(trained))
    assert len(others) > len(trained) > 0
    assert (gradient_N_H[others] == 0).all()
    assert (gradient_N_H[trained] != 0).any(1).all()
