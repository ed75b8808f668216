"""Every algorithm takes a real step of the learner, the same as a naive loop on Hugging Face transformers."""

from pathlib import Path

import pytest

from rljob_api.algorithms import KNOWN
from rljob_api.sections import ImportanceBound, ImportanceLevel, ImportanceSampling, Optimizer
from rljob_trainer.algorithms.algorithm import CISPO, CLIP, GSPO, LIKELIHOOD
from rljob_trainer.learners.config import LossSettings
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import kl_after_a_step, one_step_with_each_loss
from support.trainer.naive_learner import NaiveLearner, NaiveStep

OBJECTIVES = {"clip": CLIP, "gspo": GSPO, "cispo": CISPO, "likelihood": LIKELIHOOD}
LOSSES = {
    name: LossSettings(OBJECTIVES[traits.objective], clip_low=0.2, clip_high=0.28) for name, traits in KNOWN.items()
} | {
    "dual": LossSettings(dual_clip=1.2),
    **{
        f"{kind}-{level}": LossSettings(importance=ImportanceSampling(kind=kind, level=level, low=0.5, high=2.0))
        for kind in ImportanceBound
        for level in ImportanceLevel
    },
}
NAMES = list(LOSSES)
OPTIMIZER = Optimizer(learning_rate=1e-4, epsilon=1e-4)


def naive_steps(directory: Path) -> list[NaiveStep]:
    learner = NaiveLearner(directory, LossSettings(), OPTIMIZER, [OPTIMIZER.learning_rate] * len(LOSSES))
    steps = []
    for loss in LOSSES.values():
        learner.loss = loss
        steps.append(learner.step(sequences(8), off_policy=loss.importance is None))
    return steps


def test_every_algorithm_and_correction_takes_the_step_of_a_naive_loop(tiny_llama_dir: Path) -> None:
    config = learner_config(tiny_llama_dir, optimizer=OPTIMIZER, total_steps=100)
    (steps,) = run_ranks(one_step_with_each_loss, 1, config, list(LOSSES.values()), sequences(8))
    naive = naive_steps(tiny_llama_dir)
    assert {name: step.loss for name, step in zip(NAMES, steps, strict=True)} == pytest.approx(
        {name: step.loss for name, step in zip(NAMES, naive, strict=True)}, rel=1e-5, abs=1e-6
    )
    assert {name: step.grad_norm for name, step in zip(NAMES, steps, strict=True)} == pytest.approx(
        {name: step.grad_norm for name, step in zip(NAMES, naive, strict=True)}, rel=1e-5
    )
    assert [step.step for step in steps] == list(range(1, len(LOSSES) + 1))
    corrected = {name for name, step in zip(NAMES, steps, strict=True) if step.importance_weight is not None}
    assert corrected == {name for name, loss in LOSSES.items() if loss.importance}


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (1, 2)])
def test_the_divergence_from_the_reference_is_measured_without_a_penalty_in_the_loss(
    tiny_llama_dir: Path, tensor: int, pipeline: int
) -> None:
    config = learner_config(tiny_llama_dir, reference=True, tensor=tensor, pipeline=pipeline)
    results = run_ranks(kl_after_a_step, tensor * pipeline, config, sequences(8))
    before, after, metrics = results[-1]
    assert metrics.kl is None
    assert [kl_R.tolist() for kl_R in before] == [[0.0] * len(kl_R) for kl_R in before]
    assert sum(len(kl_R) for kl_R in before) == sum(len(each.logprobs) for each in sequences(8))
    assert all((kl_R > -1e-6).all() for kl_R in after) and sum(kl_R.sum() for kl_R in after) > 0
