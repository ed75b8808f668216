"""A learner that was saved and loaded in fresh processes goes on as if nothing had happened."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learner_data import learner_config, sequences
from learner_ranks import run_ranks
from learner_scenarios import load_error, load_train, train_and_export, train_save_train

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
    config = learner_config(tiny_qwen3_dir, precision=precision, tensor_parallel=tensor, pipeline_parallel=pipeline)
    world_size = tensor * pipeline * data
    unbroken = run_ranks(train_save_train, world_size, config, tmp_path / "step", BEFORE, AFTER)
    resumed = run_ranks(load_train, world_size, config, tmp_path / "step", AFTER)
    assert_bitwise_equal(unbroken[0], resumed[0])
    assert_bitwise_equal(unbroken[-1], resumed[-1])


def test_a_checkpoint_before_the_first_step_can_be_resumed(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    unbroken = run_ranks(train_save_train, 1, config, tmp_path / "step", [], AFTER)
    assert_bitwise_equal(unbroken[0], run_ranks(load_train, 1, config, tmp_path / "step", AFTER)[0])


def test_a_resumed_learner_takes_its_learning_rate_from_the_manifest(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    run_ranks(train_save_train, 1, config, tmp_path / "step", BEFORE, [])
    slower = replace(config, optimizer=replace(config.optimizer, learning_rate=1e-5))
    ((steps, _),) = run_ranks(load_train, 1, slower, tmp_path / "step", AFTER)
    assert 0 < max(step.learning_rate for step in steps) <= 1e-5


def test_saving_changes_nothing(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    saved = run_ranks(train_save_train, 1, config, tmp_path / "step", [], AFTER)
    torch.testing.assert_close(saved[0][1], run_ranks(train_and_export, 1, config, AFTER)[0][1], rtol=1e-5, atol=1e-6)


def test_another_layout_is_refused_and_both_are_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    config = learner_config(tiny_llama_dir)
    run_ranks(train_save_train, 1, config, tmp_path / "step", BEFORE[:1], [])
    message, _ = run_ranks(load_error, 2, replace(config, tensor_parallel=2), tmp_path / "step")
    assert "tensor 1 x pipeline 1 x data 1" in message
    assert "tensor 2 x pipeline 1 x data 1" in message
