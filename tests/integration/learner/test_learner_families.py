"""Every family of models gives what Hugging Face's model gives, trains in every kind of layout, and comes back whole.

The families share the processes of a layout, which take longer to start than to train.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rljob_api.sections import Kl
from rljob_api.sizing.model_shape import shape
from rljob_trainer.learners.config import LossSettings
from support.trainer.family_scenarios import export_train_export, logprobs_and_gradients, one_after_the_other
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.naive_learner import NaiveLearner, NaiveStep
from support.trainer.tiny_models import CASES, VARIANTS, tiny

Case = tuple[str, bool]
Sizes = tuple[int, int, int]
Results = Callable[[Sizes], dict[Case, list[Any]]]

LOSS = LossSettings(clip_low=0.2, clip_high=0.28, entropy_coefficient=0.01, kl=Kl(coefficient=0.1), temperature=0.8)
STEPS = [sequences(12, seed) for seed in range(3)]
RATES = (5e-4, 1e-3, 9.698463e-4)
"""learning rates of the three steps: two of warm-up, then the cosine. Losses show the first two, weights the last"""
MOST = 2e-6
"""difference of a weight; a percent of the last step is several times as much"""
LAYOUTS: list[Sizes] = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]


def named(case: Case) -> str:
    return f"{case[0]}-{'tied' if case[1] else 'untied'}"


@pytest.fixture(scope="module")
def trained(checkpoints: dict[Case, Path]) -> Results:
    """Return, for a layout, what `export_train_export` returns on each rank for each family."""

    @cache
    def results(sizes: Sizes) -> dict[Case, list[Any]]:
        tensor, pipeline, data = sizes
        settings = {"loss": LOSS, "tensor": tensor, "pipeline": pipeline}
        cases = [(learner_config(directory, **settings), STEPS, 64) for directory in checkpoints.values()]
        ranks = run_ranks(one_after_the_other, tensor * pipeline * data, export_train_export, cases, timeout_s=240.0)
        return dict(zip(checkpoints, map(list, zip(*ranks, strict=True)), strict=True))

    return results


@cache
def naive_run(directory: Path) -> tuple[list[NaiveStep], dict[str, torch.Tensor]]:
    """Return the steps, and the weights after the last one."""
    learner = NaiveLearner(directory, LOSS, learner_config(directory).optimizer, RATES)
    return [learner.step(step, off_policy=True) for step in STEPS], learner.weights()


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
def test_every_layout_trains_like_a_naive_hugging_face_loop(
    checkpoints: dict[Case, Path], trained: Results, case: Case, sizes: Sizes
) -> None:
    naive, wanted = naive_run(checkpoints[case])
    for _, _, steps, weights in trained(sizes)[case]:
        assert [step.loss for step in steps] == pytest.approx([step.loss for step in naive], rel=1e-5, abs=1e-6)
        assert [step.grad_norm for step in steps] == pytest.approx([step.grad_norm for step in naive], rel=1e-5)
        torch.testing.assert_close(weights, {name: wanted[name] for name in weights}, rtol=0, atol=MOST)


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
def test_weights_come_back_bit_by_bit(
    checkpoints: dict[Case, Path], trained: Results, case: Case, sizes: Sizes
) -> None:
    wanted = load_file(checkpoints[case] / "model.safetensors")
    for _, exported, _, _ in trained(sizes)[case]:
        torch.testing.assert_close(exported, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
def test_every_rank_has_as_many_parameters_as_the_plan_says(
    checkpoints: dict[Case, Path], trained: Results, case: Case, sizes: Sizes
) -> None:
    tensor, pipeline, data = sizes
    model = shape(json.loads((checkpoints[case] / "config.json").read_text()))
    wanted = [model.stage(rank // (tensor * data), tensor, pipeline) for rank in range(tensor * pipeline * data)]
    assert [parameters for parameters, *_ in trained(sizes)[case]] == wanted


@pytest.mark.parametrize("case", CASES, ids=named)
def test_hugging_face_finds_every_tensor_and_no_other(checkpoints: dict[Case, Path], case: Case) -> None:
    directory = checkpoints[case]
    model, loaded = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert {what: names for what, names in loaded.items() if names} == {}
    assert model.num_parameters() == shape(json.loads((directory / "config.json").read_text())).parameters


@pytest.fixture(scope="module")
def measured(checkpoints: dict[Case, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Return for each family and variant its directory, and what `logprobs_and_gradients` returns."""
    directories = {named(case): directory for case, directory in checkpoints.items()}
    for name, (architecture, changes) in VARIANTS.items():
        directories[name] = tiny(architecture, tmp_path_factory.mktemp("variant"), **changes)
    cases = [(learner_config(directory), STEPS[0]) for directory in directories.values()]
    (found,) = run_ranks(one_after_the_other, 1, logprobs_and_gradients, cases, timeout_s=240.0)
    return dict(zip(directories, zip(directories.values(), found, strict=True), strict=True))


@pytest.mark.parametrize("name", [*map(named, CASES), *VARIANTS])
def test_logprobs_and_clipped_gradients_are_those_of_hugging_face(
    measured: dict[str, tuple[Path, Any]], name: str
) -> None:
    directory, (logprobs, metrics, gradients) = measured[name]
    config = learner_config(directory)
    naive = NaiveLearner(directory, config.loss, config.optimizer, [1e-3])
    theirs = torch.cat([naive.logprobs(naive.model, each)[0].detach() for each in STEPS[0]])
    ours = torch.cat([torch.from_numpy(each) for each in logprobs])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    step = naive.step(STEPS[0], off_policy=False)
    assert metrics.grad_norm > config.optimizer.clip_grad
    assert gradients.keys() == step.gradients.keys()
    torch.testing.assert_close(gradients, step.gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_another_model(measured: dict[str, tuple[Path, Any]], tmp_path: Path, name: str) -> None:
    architecture, _ = VARIANTS[name]
    plain = NaiveLearner(tiny(architecture, tmp_path), LOSS, learner_config(tmp_path).optimizer, ())
    theirs = torch.cat([plain.logprobs(plain.model, each)[0].detach() for each in STEPS[0]])
    ours = torch.cat([torch.from_numpy(each) for each in measured[name][1][0]])
    assert (ours - theirs).abs().max() > 1e-3
