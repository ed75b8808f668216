"""The kernels of GPUs, interpreted by Triton on the CPU: against PyTorch in fp64, and in whole steps."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.trainer.interpreted import Interpreted, interpreted
from support.trainer.kernel_scenarios import (
    errors_of_random_heads,
    errors_of_random_layers,
    errors_of_random_shapes,
    train_fused_rank,
    train_plain_and_fused,
)
from support.trainer.learner_data import learner_config, sequences
from support.trainer.naive_learner import NaiveLearner


@pytest.fixture(scope="module")
def processes() -> Iterator[Interpreted]:
    with interpreted() as started:
        yield started


def test_results_and_gradients_are_those_of_fp64_for_odd_shapes_too(processes: Interpreted) -> None:
    errors = processes.run(errors_of_random_shapes, 0, 20)
    assert len(errors) == 6
    assert max(errors.values()) < 1e-6, errors


def test_norms_and_gates_are_those_of_fp64(processes: Interpreted) -> None:
    errors = processes.run(errors_of_random_layers, 0, 20)
    assert len(errors) == 10
    assert max(errors.values()) < 1e-5, errors  # in a norm over few columns the gradient is a small difference


def test_the_output_layer_is_that_of_fp64_for_every_use_of_the_entropy(processes: Interpreted) -> None:
    errors = processes.run(errors_of_random_heads, 0, 40)
    assert len(errors) == 12
    assert max(errors.values()) < 5e-5, errors


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_whole_steps_are_those_of_the_plain_layers(
    checkpoints: dict[tuple[str, bool], Path], processes: Interpreted, family: str
) -> None:
    config = learner_config(checkpoints[family, True])
    plain, fused, calls = processes.run(train_plain_and_fused, config, [sequences(4), sequences(4)])
    assert calls, "no kernel was launched"
    for is_, should in zip(fused[0], plain[0], strict=True):
        assert is_.loss == pytest.approx(should.loss, abs=1e-5)
        assert is_.grad_norm == pytest.approx(should.grad_norm, rel=1e-5)
    assert fused[1].keys() == plain[1].keys()
    for name, weight in plain[1].items():
        torch.testing.assert_close(fused[1][name], weight, rtol=0, atol=1e-5, msg=name)


def test_ranks_that_share_out_tokens_have_the_kernels_too(
    checkpoints: dict[tuple[str, bool], Path], processes: Interpreted
) -> None:
    directory, steps = checkpoints["qwen3", True], [sequences(5), sequences(4, 1)]
    config = learner_config(directory, tensor=2, sequence=True)
    naive = NaiveLearner(directory, config.loss, config.optimizer, (5e-4, 1e-3))
    wanted = [naive.step(step, off_policy=False) for step in steps]
    for (taken, weights), calls in processes.run_ranks(train_fused_rank, config, steps):
        assert calls, "no kernel was launched"
        assert [step.grad_norm for step in taken] == pytest.approx([step.grad_norm for step in wanted], rel=1e-5)
        theirs = {name: weight for name, weight in naive.weights().items() if name in weights}
        torch.testing.assert_close(weights, theirs, rtol=0, atol=1e-5)
