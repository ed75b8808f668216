"""Megatron's schedule over micro-batches: each is computed once, and gradients add up whatever the split."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_trainer.learners.rank import schedule
from rljob_trainer.learners.rank.optimizer.optimizer import data_parallel
from support.trainer.lone_rank import SmallModel, lone_rank


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    with lone_rank():
        yield


@dataclass(frozen=True)
class MicroBatch:
    tokens_N: torch.Tensor
    packed: Any = None


def inputs(rows: int) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


def loss(batch: MicroBatch, output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    total = output.square().sum()
    return total, torch.tensor(7, dtype=torch.int), total.item()


def test_each_chunk_gets_every_micro_batch_which_is_made_once_and_kept_no_longer_than_needed() -> None:
    alive: set[int] = set()

    class Made:
        def __init__(self, number: int) -> None:
            self.number = number
            alive.add(number)

        def __del__(self) -> None:
            alive.discard(self.number)

    first, second = schedule.one_for_each(map(Made, range(3)), 2)
    assert [next(first).number, next(first).number] == [0, 1]
    assert alive == {0, 1}
    assert next(second).number == 0
    assert alive == {1}
    assert [each.number for each in second] == [1, 2]
    assert [each.number for each in first] == [2]
    assert not alive


def trained(*batches: torch.Tensor) -> tuple[list[torch.Tensor], list[float]]:
    """Return the gradients, and what was returned for each micro-batch."""
    (ddp,) = data_parallel([SmallModel()])
    ddp.zero_grad_buffer()
    results = schedule.run([ddp], [MicroBatch(batch) for batch in batches], loss, forward_only=False)
    return [parameter.main_grad.clone() for parameter in ddp.module.parameters()], results  # type: ignore[misc]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_gradients_are_sums_over_any_split_into_micro_batches(sizes: list[int]) -> None:
    rows = inputs(sum(sizes))
    found, results = trained(*rows.split(sizes))
    model = SmallModel()
    wanted = torch.autograd.grad(model(rows, None).square().sum(), tuple(model.parameters()))
    torch.testing.assert_close(tuple(found), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(results, [model(part, None).square().sum().item() for part in rows.split(sizes)])


def test_a_measurement_returns_each_outcome_in_order_and_leaves_no_gradient() -> None:
    (ddp,) = data_parallel([SmallModel()])
    ddp.zero_grad_buffer()
    rows = inputs(6)

    def measure(batch: MicroBatch, output: torch.Tensor, non_loss_data: bool) -> torch.Tensor:
        assert non_loss_data
        return output.sum(1)

    with torch.no_grad():
        found = schedule.run([ddp], [MicroBatch(part) for part in rows.split(2)], measure, forward_only=True)
    torch.testing.assert_close(torch.cat(found), SmallModel()(rows, None).sum(1).detach())
    assert not any(parameter.main_grad.any() for parameter in ddp.module.parameters())  # type: ignore[union-attr]


def test_model_and_outcome_get_the_micro_batch_and_only_measure_it() -> None:
    (ddp,) = data_parallel([SmallModel()])
    packed: list[Any] = []
    measured: list[MicroBatch] = []
    ddp.zero_grad_buffer()
    ddp.register_forward_pre_hook(lambda _, arguments: packed.append(arguments[1]))
    batches = [MicroBatch(part, packed=name) for part, name in zip(inputs(4).split(2), "ab", strict=True)]

    def measure(batch: MicroBatch, output: torch.Tensor, non_loss_data: bool) -> torch.Tensor:
        measured.append(batch)
        return output.square().sum()

    schedule.run([ddp], batches, measure, forward_only=True)
    assert (packed, measured) == (["a", "b"], batches)
    assert not any(parameter.main_grad.any() for parameter in ddp.module.parameters())  # type: ignore[union-attr]
