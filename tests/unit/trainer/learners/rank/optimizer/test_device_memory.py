"""A learner's state that leaves its device and comes back, over memory that is counted."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core import parallel_state

from rljob_api import sections
from rljob_trainer.learners.rank.optimizer import offloadable_tensors
from rljob_trainer.learners.rank.optimizer.device_memory import Leaves, Stays, residence
from rljob_trainer.learners.rank.optimizer.offloadable_tensors import HostMemory, OffloadableTensors, laid_out
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel, optimizer_tensors
from support.trainer.counted_memory import CountedMemory
from support.trainer.lone_rank import SmallModel, lone_rank

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
SETTINGS = sections.Optimizer(learning_rate=0.03, weight_decay=0.1)


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    with lone_rank():
        yield


class Trained:
    """A model with its optimizer, whose state may leave."""

    def __init__(self, precision: str, memory: HostMemory | None = None) -> None:
        self.model = SmallModel(torch.bfloat16 if precision == "bf16" else torch.float32)
        (self.ddp,) = data_parallel([self.model])
        self.optimizer = Optimizer([self.ddp], SETTINGS, 8, precision)
        self.state = Leaves([([self.ddp], self.optimizer)], memory) if memory else Stays()
        if isinstance(memory, CountedMemory):
            memory.hold(sum(each.nbytes for each in self.movables()))

    def movables(self) -> tuple[OffloadableTensors, ...]:
        assert isinstance(self.state, Leaves)
        return self.state.weights, self.state.gradients, self.state.optimizer

    def step(self, seed: int) -> tuple[bool, float]:
        self.state.need(gradients=True, optimizer=True, changes=True)
        self.ddp.zero_grad_buffer()
        self.optimizer.megatron.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))  # type: ignore[attr-defined]
        self.state.need_optimizer()
        return self.optimizer.step()

    def everything(self) -> list[torch.Tensor]:
        tensors = [*self.model.parameters(), *optimizer_tensors(self.optimizer)]
        return [tensor.detach().clone() for tensor in tensors]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("weights", [True, False])
def test_steps_between_which_the_state_leaves_are_those_without_to_the_bit(precision: str, weights: bool) -> None:
    plain, moved = Trained(precision), Trained(precision, CountedMemory())
    for seed in range(3):
        assert moved.step(seed) == plain.step(seed)
        moved.state.leave(weights=weights)
    moved.state.need(optimizer=True)
    moved.state.need_optimizer()
    torch.testing.assert_close(moved.everything(), plain.everything(), rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_memory_is_free_once_everything_has_left(precision: str) -> None:
    memory = CountedMemory()
    trained = Trained(precision, memory)
    held = memory.used
    assert held >= 15 * (2 + 4 + 12 if precision == "bf16" else 4 + 4 + 8)
    trained.state.leave(weights=True)
    assert (memory.used, memory.trims) == (0, 1)
    trained.step(0)
    assert (memory.used, memory.peak) == (held, held)


def test_megatron_s_scratch_memory_leaves_too() -> None:
    trained = Trained("fp32", CountedMemory())
    scratch = parallel_state.get_global_memory_buffer()
    scratch.get_tensor([3], torch.float32, "mpu")
    trained.state.leave(weights=False)
    assert not scratch.buffer


def test_gradients_and_optimizer_state_leave_without_the_weights() -> None:
    memory = CountedMemory()
    trained = Trained("bf16", memory)
    before = trained.everything()[:2]
    trained.state.leave(weights=False)
    assert memory.used == trained.movables()[0].nbytes
    torch.testing.assert_close([each.detach() for each in trained.model.parameters()], before, rtol=0, atol=0)


def test_a_forward_pass_brings_back_the_weights_alone() -> None:
    memory = CountedMemory()
    trained = Trained("bf16", memory)
    before = trained.everything()[:2]
    trained.state.leave(weights=True)
    trained.state.need()
    assert memory.used == trained.movables()[0].nbytes
    torch.testing.assert_close([each.detach() for each in trained.model.parameters()], before, rtol=0, atol=0)


def test_what_has_not_changed_is_not_copied_again() -> None:
    memory = CountedMemory()
    trained = Trained("bf16", memory)
    weights, _, optimizer = trained.movables()
    trained.state.leave(weights=True)
    assert memory.copied == weights.nbytes + optimizer.nbytes
    trained.state.need()
    trained.state.leave(weights=True)
    assert memory.copied == 2 * weights.nbytes + optimizer.nbytes
    trained.step(0)
    trained.state.leave(weights=True)
    assert memory.copied == 4 * weights.nbytes + 3 * optimizer.nbytes


def test_host_memory_is_made_once() -> None:
    memory = CountedMemory()
    trained = Trained("bf16", memory)
    for seed in range(3):
        trained.step(seed)
        trained.state.leave(weights=True)
    weights, _, optimizer = trained.movables()
    assert sum(memory.buffers) == weights.nbytes + optimizer.nbytes


def test_state_that_nobody_waited_for_may_leave_again() -> None:
    memory = CountedMemory()
    trained = Trained("bf16", memory)
    before = trained.everything()
    trained.state.leave(weights=True)
    trained.state.need(optimizer=True, changes=True)
    trained.state.leave(weights=True)
    trained.state.need(optimizer=True)
    trained.state.need_optimizer()
    torch.testing.assert_close(trained.everything(), before, rtol=0, atol=0)


def test_all_chunks_of_a_model_leave() -> None:
    memory = CountedMemory()
    one, other = Trained("bf16"), Trained("bf16")
    both, alone = (Leaves([(chunks, one.optimizer)], memory) for chunks in ([one.ddp, other.ddp], [one.ddp]))
    for state in ("weights", "gradients"):
        assert getattr(both, state).nbytes == 2 * getattr(alone, state).nbytes > 0


def test_a_second_optimizer_shares_the_residence() -> None:
    policy, critic = Trained("bf16"), Trained("bf16")
    memory = CountedMemory()
    state = Leaves([([policy.ddp], policy.optimizer), ([critic.ddp], critic.optimizer)], memory)
    alone = Leaves([([policy.ddp], policy.optimizer)], memory)
    assert [each.nbytes for each in (state.weights, state.gradients, state.optimizer)] == [
        2 * each.nbytes for each in (alone.weights, alone.gradients, alone.optimizer)
    ]


def test_memory_beyond_the_capacity_is_refused_when_it_comes_back() -> None:
    memory = CountedMemory()
    trained = Trained("bf16", memory)
    trained.state.leave(weights=True)
    memory.capacity = trained.movables()[0].nbytes
    trained.state.need()
    with pytest.raises(MemoryError):
        trained.state.need(gradients=True)


def test_nothing_leaves_unless_the_configuration_says_so() -> None:
    trained = Trained("bf16")
    parts = [([trained.ddp], trained.optimizer)]
    cpu = torch.device("cpu")
    assert isinstance(residence(False, parts, cpu), Stays)
    leaves = residence(True, parts, cpu)
    leaves.leave(weights=True)
    assert trained.model.matrix.untyped_storage().nbytes() == 0


@given(sizes=st.lists(st.integers(0, 40), max_size=6), piece=st.integers(1, 17))
def test_every_byte_has_one_place_in_host_memory(sizes: list[int], piece: int) -> None:
    stretches = laid_out(sizes, piece)
    own = [(each.storage, each.start + byte) for each in stretches for byte in range(each.length)]
    places = [(each.piece, each.offset + byte) for each in stretches for byte in range(each.length)]
    assert own == [(storage, byte) for storage, size in enumerate(sizes) for byte in range(size)]
    assert places == [divmod(place, piece) for place in range(sum(sizes))]


def test_storages_larger_than_a_piece_of_host_memory_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloadable_tensors, "PIECE", 100)
    memory = CountedMemory()
    tensors = [torch.arange(60.0), torch.arange(7.0), torch.arange(90.0)[3:]]
    before = [tensor.clone() for tensor in tensors]
    moved = OffloadableTensors(tensors, memory)
    moved.leave()
    assert memory.buffers == [100] * 6 + [28]
    moved.come_back()
    moved.wait()
    torch.testing.assert_close(tensors, before, rtol=0, atol=0)
