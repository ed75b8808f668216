"""What a step does besides the arithmetic: skipping, the reference, old log-probabilities, empty shares."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rljob_api.sections import Experts, Kl
from rljob_api.sizing.tensors import ROUTER_BIAS
from rljob_trainer.learners.config import LossSettings
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import poisoned_step, train, two_updates_on_one_rollout
from support.trainer.tiny_models import tiny


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(tiny_llama_dir: Path, world_size: int) -> None:
    good = sequences(8)
    bad = [replace(good[0], advantage=math.nan), *good[1:]]
    known = run_ranks(poisoned_step, world_size, learner_config(tiny_llama_dir), good, bad)[-1]
    torch.testing.assert_close(known["after"], known["before"], rtol=0, atol=0)
    assert known["poisoned"].skipped and known["skipped"] == 1
    assert (known["first"].step, known["poisoned"].step, known["last"].step) == (1, 1, 2)
    assert not known["last"].skipped and math.isfinite(known["last"].loss)


def test_a_skipped_step_leaves_the_biases_of_routers_as_they_are(tmp_path: Path) -> None:
    good = sequences(8)
    bad = [replace(good[0], advantage=math.nan), *good[1:]]
    config = learner_config(tiny("Glm4MoeForCausalLM", tmp_path, tied=False), experts=Experts(bias_update_rate=0.1))
    (known,) = run_ranks(poisoned_step, 1, config, good, bad)
    assert known["poisoned"].skipped
    assert any(name.endswith(ROUTER_BIAS) for name in known["after"][0])
    torch.testing.assert_close(known["after"][0], known["before"][0], rtol=0, atol=0)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2)])
def test_before_the_first_update_the_kl_is_exactly_zero(
    tiny_qwen3_dir: Path, estimator: str, tensor: int, pipeline: int
) -> None:
    loss = LossSettings(kl=Kl(coefficient=0.1, estimator=estimator))  # type: ignore[arg-type]  # parametrize gives a str
    config = learner_config(tiny_qwen3_dir, loss=loss, tensor=tensor, pipeline=pipeline)
    first, second = run_ranks(train, tensor * pipeline, config, [sequences(8)] * 2, 64, False)[0]
    assert first.kl == 0.0
    assert second.kl != 0.0


def test_the_first_update_of_a_rollout_has_ratio_one_and_the_second_does_not(tiny_llama_dir: Path) -> None:
    config = learner_config(tiny_llama_dir)
    ((first, second),) = run_ranks(two_updates_on_one_rollout, 1, config, sequences(8))
    assert first.ratio == 1.0
    assert second.ratio != 1.0


def test_a_rank_without_samples_takes_part_and_adds_nothing(tiny_llama_dir: Path) -> None:
    batch = sequences(1)
    ((alone,),) = run_ranks(train, 1, learner_config(tiny_llama_dir), [batch], 64, True)
    ((shared,), _) = run_ranks(train, 2, learner_config(tiny_llama_dir), [batch], 64, True)
    assert shared.grad_norm == pytest.approx(alone.grad_norm, rel=1e-5)
    assert shared.response_tokens == alone.response_tokens


def test_a_step_without_samples_is_not_taken(tiny_llama_dir: Path) -> None:
    ((empty, full),) = run_ranks(train, 1, learner_config(tiny_llama_dir), [[], sequences(4)], 64, False)
    assert (empty.step, empty.skipped, empty.train_tokens) == (0, False, 0)
    assert full.step == 1


def test_tokens_of_a_common_prompt_are_computed_once(tiny_llama_dir: Path) -> None:
    batch = [replace(each, tokens=each.tokens) for each in sequences(8, samples_per_prompt=8)]
    ((step,),) = run_ranks(train, 1, learner_config(tiny_llama_dir), [batch], 10_000, False)
    assert step.train_tokens == sum(len(each.tokens) for each in batch)
    assert step.computed_tokens <= step.train_tokens - 7 * batch[0].prompt_length
