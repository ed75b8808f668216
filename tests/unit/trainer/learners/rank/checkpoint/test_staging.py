"""Copies for a checkpoint are the state at its moment, and their memory is used again."""

import pytest
import torch

from rljob_trainer.learners.rank.checkpoint import staging as module
from rljob_trainer.learners.rank.checkpoint.staging import ALIGNED, Staging
from rljob_trainer.learners.rank.optimizer.offloadable_tensors import HostMemory


class Counted(HostMemory):
    """Memory that knows what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def buffer(self, nbytes: int) -> torch.Tensor:
        self.asked.append(nbytes)
        return super().buffer(nbytes)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 4 * ALIGNED)


TENSORS = [
    torch.arange(30.0),
    torch.arange(9).to(torch.bfloat16).view(3, 3),
    torch.ones(()),
    torch.zeros(0, 4),
    torch.arange(1000),  # more than a buffer
    torch.ones(40, requires_grad=True),
]


def test_a_copy_does_not_change_with_what_it_was_copied_from() -> None:
    staging = Staging(Counted())
    tensors = [tensor.detach().clone() for tensor in TENSORS]
    copies = [staging.copy(tensor) for tensor in tensors]
    staging.wait()
    for tensor in tensors:
        tensor.zero_()
    for copy, tensor in zip(copies, TENSORS, strict=True):
        assert torch.equal(copy, tensor) and copy.dtype == tensor.dtype and not copy.requires_grad
        assert copy.data_ptr() % ALIGNED == 0 or copy.numel() == 0


def test_the_memory_is_used_again() -> None:
    memory = Counted()
    staging = Staging(memory)
    places = []
    for _ in range(3):
        staging.empty()
        places.append([staging.copy(tensor).data_ptr() for tensor in TENSORS])
    assert places[0] == places[1] == places[2]
    assert sum(memory.asked) < 2 * sum(tensor.numel() * tensor.itemsize for tensor in TENSORS) + 8 * ALIGNED


def test_more_state_than_before_gets_more_memory() -> None:
    memory = Counted()
    staging = Staging(memory)
    staging.copy(torch.zeros(ALIGNED))
    staging.empty()
    kept = [staging.copy(torch.full((ALIGNED,), value)) for value in (1.0, 2.0)]
    assert memory.asked == [4 * ALIGNED] * 2
    assert [each.unique().item() for each in kept] == [1.0, 2.0]
