"""A learner that was saved and loaded in fresh processes goes on as if nothing had happened."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_trainer.learners.config import LearnerConfig
from support.trainer.learner_data import changed, learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import (
    beside_a_gpu,
    load_and_look,
    load_error,
    load_train,
    load_train_save_train,
    save_and_look,
    train_and_export,
    train_save_train,
)
from support.trainer.tiny_models import FAMILIES, tiny_qwen3

BEFORE = [sequences(8, seed) for seed in range(3)]
AFTER = [sequences(8, seed) for seed in range(3, 6)]


def assert_bitwise_equal(first: tuple[Any, Any], second: tuple[Any, Any]) -> None:
    steps, weights = first
    other_steps, other_weights = second
    torch.testing.assert_close(weights, other_weights, rtol=0, atol=0)
    assert [replace(step, peak_memory_bytes=0) for step in steps] == [
        replace(step, peak_memory_bytes=0) for step in other_steps
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("tensor", "pipeline", "data"), [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1)])
def test_resuming_is_bitwise_the_same(
    tiny_qwen3_dir: Path, tmp_path: Path, precision: str, tensor: int, pipeline: int, data: int
) -> None:
    config = learner_config(tiny_qwen3_dir, precision=precision, tensor=tensor, pipeline=pipeline)
    world_size = tensor * pipeline * data
    unbroken = run_ranks(train_save_train, world_size, config, tmp_path / "step", BEFORE, AFTER)
    resumed = run_ranks(load_train, world_size, config, tmp_path / "step", AFTER)
    assert_bitwise_equal(unbroken[0], resumed[0])
    assert_bitwise_equal(unbroken[-1], resumed[-1])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("data", [1, 2])
def test_a_resumed_learner_saves_what_it_has_learnt_since(
    tiny_llama_dir: Path, tmp_path: Path, precision: str, data: int
) -> None:
    config, first, second = learner_config(tiny_llama_dir, precision=precision), tmp_path / "first", tmp_path / "second"
    run_ranks(train_save_train, data, config, first, BEFORE, [])
    unbroken = run_ranks(load_train_save_train, data, config, first, AFTER[:2], second, AFTER[2:])
    assert_bitwise_equal(unbroken[0], run_ranks(load_train, data, config, second, AFTER[2:])[0])


def test_a_checkpoint_before_the_first_step_can_be_resumed(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    unbroken = run_ranks(train_save_train, 1, config, tmp_path / "step", [], AFTER)
    assert_bitwise_equal(unbroken[0], run_ranks(load_train, 1, config, tmp_path / "step", AFTER)[0])


def test_a_gpu_that_is_not_used_has_no_part_in_a_checkpoint(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    saved = run_ranks(beside_a_gpu, 1, train_save_train, config, tmp_path / "step", [], [])
    loaded = run_ranks(beside_a_gpu, 1, load_train, config, tmp_path / "step", [])
    assert_bitwise_equal(saved[0], loaded[0])


def test_a_resumed_learner_takes_its_learning_rate_from_the_manifest(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    run_ranks(train_save_train, 1, config, tmp_path / "step", BEFORE, [])
    slower = replace(config, optimizer=config.optimizer.model_copy(update={"learning_rate": 1e-5}))
    ((steps, _),) = run_ranks(load_train, 1, slower, tmp_path / "step", AFTER)
    assert 0 < max(step.learning_rate for step in steps) <= 1e-5


def test_saving_changes_nothing(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    saved = run_ranks(train_save_train, 1, config, tmp_path / "step", [], AFTER)
    torch.testing.assert_close(saved[0][1], run_ranks(train_and_export, 1, config, AFTER)[0][1], rtol=1e-5, atol=1e-6)


LAYOUTS = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]


def in_layout(config: LearnerConfig, sizes: tuple[int, int, int]) -> tuple[int, LearnerConfig]:
    """Return how many ranks there are, and their configuration."""
    tensor, pipeline, data = sizes
    return tensor * pipeline * data, changed(config, tensor=tensor, pipeline=pipeline)


@pytest.mark.parametrize("saved_by", LAYOUTS, ids=lambda sizes: "tp{}-pp{}-dp{}".format(*sizes))
@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen3", False)])
def test_every_layout_goes_on_from_every_other(
    tmp_path: Path, family: str, tied: bool, saved_by: tuple[int, int, int]
) -> None:
    config = learner_config(FAMILIES[family](tmp_path / "hf", tied=tied))
    world, own = in_layout(config, saved_by)
    saved = run_ranks(save_and_look, world, own, tmp_path / "step", BEFORE, AFTER[0])[0]
    assert saved["counts"] == (3, [3.0])
    for sizes in [(2, 2, 1), *(sizes for sizes in LAYOUTS if sizes != saved_by)]:
        world, own = in_layout(config, sizes)
        loaded = run_ranks(load_and_look, world, own, tmp_path / "step", AFTER[0])[0]
        for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
        assert loaded["counts"] == saved["counts"]
        assert loaded["next"].loss == pytest.approx(saved["next"].loss, rel=1e-6)
        assert loaded["next"].learning_rate == saved["next"].learning_rate
        torch.testing.assert_close(loaded["after"], saved["after"], rtol=1e-5, atol=1e-6)


def test_masters_of_bf16_weights_go_to_another_layout_too(tiny_qwen3_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_qwen3_dir, precision="bf16")
    world, own = in_layout(config, (1, 2, 3))  # three ranks pad what lies before the embedding that stages share
    saved = run_ranks(save_and_look, world, own, tmp_path / "step", BEFORE, AFTER[0])[0]
    world, own = in_layout(config, (2, 1, 1))
    loaded = run_ranks(load_and_look, world, own, tmp_path / "step", AFTER[0])[0]
    for name in ("weights", "master", "exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
    assert loaded["next"].loss == pytest.approx(saved["next"].loss, rel=1e-2)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [((1, 1, 1), (2, 1, 1)), ((2, 1, 1), (1, 1, 1))])
def test_a_vocabulary_that_one_layout_pads_and_another_does_not(
    tmp_path: Path, saved_by: tuple[int, int, int], loaded_by: tuple[int, int, int]
) -> None:
    directory = tiny_qwen3(tmp_path / "hf", tied=False)
    model = AutoModelForCausalLM.from_pretrained(directory)
    model.resize_token_embeddings(511)
    model.save_pretrained(directory)
    config = learner_config(directory)
    steps = [[replace(each, tokens=tuple(min(token, 510) for token in each.tokens)) for each in BEFORE[0]]]
    world, own = in_layout(config, saved_by)
    saved = run_ranks(save_and_look, world, own, tmp_path / "step", steps, steps[0])[0]
    world, own = in_layout(config, loaded_by)
    loaded = run_ranks(load_and_look, world, own, tmp_path / "step", steps[0])[0]
    for name in ("weights", "exp_avg"):
        torch.testing.assert_close(loaded[name], saved[name], rtol=0, atol=0)
    assert loaded["next"].loss == pytest.approx(saved["next"].loss, rel=1e-6)


def test_a_checkpoint_of_another_format_is_refused(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    run_ranks(train_save_train, 1, config, tmp_path / "step", BEFORE[:1], [])
    common = torch.load(tmp_path / "step" / "common.pt", weights_only=False)
    torch.save(common | {"format": "dp_reshardable"}, tmp_path / "step" / "common.pt")
    (message,) = run_ranks(load_error, 1, config, tmp_path / "step")
    assert "optimizer state in format dp_reshardable; this version reads fully_reshardable" in message
