"""A teacher in the learner's ranks says the same as Hugging Face transformers, in every layout."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from rljob_trainer.learners.config import LossSettings
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import distil
from support.trainer.naive_learner import NaiveLearner
from support.trainer.tiny_models import tiny_qwen3

LOSS = LossSettings(temperature=0.8)
SAMPLES = [replace(sequence, index=index) for index, sequence in enumerate(sequences(8))]
LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]


@pytest.fixture(scope="module")
def teacher_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of another family, twice as deep, with an output layer of its own."""
    return tiny_qwen3(tmp_path_factory.mktemp("teacher"), seed=7, layers=4, tied=False)


@cache
def naive(student_dir: Path, teacher_dir: Path) -> tuple[list[torch.Tensor], float, float]:
    """Return the divergence of each token of each sample, and loss and gradient norm of the first step."""
    settings = learner_config(student_dir).optimizer
    student = NaiveLearner(student_dir, LOSS, settings, [settings.learning_rate])
    teacher = NaiveLearner(teacher_dir, LOSS, settings, [])
    with torch.no_grad():
        found = [
            student.logprobs(student.model, each)[0] - teacher.logprobs(teacher.model, each)[0] for each in SAMPLES
        ]
    taught = [replace(each, advantage=-divergence_T) for each, divergence_T in zip(SAMPLES, found, strict=True)]
    step = student.step(taught, off_policy=False)
    return found, step.loss, step.grad_norm


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
def test_every_layout_distils_like_a_naive_hugging_face_loop(
    tiny_llama_dir: Path, teacher_dir: Path, layout: tuple[int, int, int]
) -> None:
    tensor, pipeline, data = layout
    config = learner_config(tiny_llama_dir, loss=LOSS, teacher_dir=teacher_dir, tensor=tensor, pipeline=pipeline)
    found, metrics = run_ranks(distil, tensor * pipeline * data, config, SAMPLES)[-1]
    divergences, loss, grad_norm = naive(tiny_llama_dir, teacher_dir)
    ours = [torch.from_numpy(found[index]) for index in range(len(SAMPLES))]
    torch.testing.assert_close(torch.cat(ours), torch.cat(divergences), rtol=0, atol=2e-5)
    assert torch.cat(divergences).abs().mean() > 0.1
    assert metrics.loss == pytest.approx(loss, rel=1e-4)
    assert metrics.grad_norm == pytest.approx(grad_norm, rel=1e-4)


def test_a_student_that_is_its_own_teacher_differs_from_it_in_nothing(tiny_llama_dir: Path) -> None:
    config = learner_config(tiny_llama_dir, loss=LOSS, teacher_dir=tiny_llama_dir)
    ((found, metrics),) = run_ranks(distil, 1, config, SAMPLES)
    assert {index: divergence.tolist() for index, divergence in found.items()} == {
        each.index: [0.0] * len(each.logprobs) for each in SAMPLES
    }
    assert metrics.grad_norm == 0.0
