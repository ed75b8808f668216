"""An optimizer whose state is in host memory: the same steps, with one chunk of it on the device at a time."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import sections
from rljob_trainer.learners.rank.optimizer import host_optimizer
from rljob_trainer.learners.rank.optimizer import optimizer as optimizer_module
from rljob_trainer.learners.rank.optimizer.device_memory import Leaves
from rljob_trainer.learners.rank.optimizer.host_optimizer import chunks
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel, optimizer_tensors
from support.trainer.counted_memory import CountedMemory
from support.trainer.lone_rank import SmallModel, lone_rank

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
SETTINGS = sections.Optimizer(learning_rate=0.03, weight_decay=0.1, clip_grad=1.5)
MATRIX, BIAS = 12, 3
"""numbers of the small model's parameters"""


@pytest.fixture(scope="module", autouse=True)
def rank() -> Iterator[None]:
    with lone_rank():
        yield


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> CountedMemory:
    """The memory of the device, with chunks of one parameter."""
    memory = CountedMemory()
    monkeypatch.setattr(optimizer_module, "memory_of", lambda device: memory)
    monkeypatch.setattr(host_optimizer, "CHUNK", 4 * 3 * MATRIX)
    return memory


class Trained:
    def __init__(self, precision: str, *, on_host: bool) -> None:
        self.model = SmallModel(torch.bfloat16 if precision == "bf16" else torch.float32)
        (self.ddp,) = data_parallel([self.model])
        self.optimizer = Optimizer([self.ddp], SETTINGS.model_copy(update={"offload": on_host}), 8, precision)

    def step(self, seed: int) -> tuple[bool, float]:
        self.ddp.zero_grad_buffer()
        self.optimizer.megatron.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))  # type: ignore[attr-defined]
        return self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        """Return masters and moments, as a checkpoint asks for them."""
        (part,) = self.optimizer.megatron.chained_optimizers
        return [
            tensor.detach().clone()  # before the next one is asked for
            for parameter in self.model.parameters()
            for name, tensor in part._get_main_param_and_optimizer_states(parameter).items()
            if name != "step"
        ]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_steps_are_those_of_an_optimizer_on_the_device_to_the_bit(precision: str, memory: CountedMemory) -> None:
    plain, host = Trained(precision, on_host=False), Trained(precision, on_host=True)
    wanted, found = ([each.step(seed) for seed in range(4)] for each in (plain, host))
    assert found == wanted
    torch.testing.assert_close(list(host.model.parameters()), list(plain.model.parameters()), rtol=0, atol=0)
    torch.testing.assert_close(host.state(), plain.state(), rtol=0, atol=0)


@pytest.mark.parametrize(("precision", "each"), [("fp32", 8), ("bf16", 12)])
def test_a_step_has_one_chunk_on_the_device(precision: str, each: int, memory: CountedMemory) -> None:
    trained = Trained(precision, on_host=True)
    assert memory.used == -each * (MATRIX + BIAS), "masters and moments were there before they were counted"
    memory.hold(-memory.used)
    memory.peak = 0
    trained.step(0)
    assert (memory.used, memory.peak) == (0, each * MATRIX)
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in optimizer_tensors(trained.optimizer)) is (
        precision == "bf16"
    )


def test_a_step_that_is_not_taken_moves_nothing(memory: CountedMemory) -> None:
    trained = Trained("bf16", on_host=True)
    before = memory.copied
    trained.ddp.zero_grad_buffer()
    trained.model.matrix.main_grad.fill_(torch.nan)  # type: ignore[attr-defined]  # Megatron's
    assert not trained.optimizer.step()[0]
    assert memory.copied == before


def test_what_is_only_read_is_not_copied_back(memory: CountedMemory) -> None:
    trained = Trained("bf16", on_host=True)
    before = memory.copied
    trained.state()
    trained.optimizer.put_away()
    assert memory.copied - before == 12 * (MATRIX + BIAS)


def test_loaded_state_is_kept(memory: CountedMemory) -> None:
    trained = Trained("bf16", on_host=True)
    (part,) = trained.optimizer.megatron.chained_optimizers
    for parameter in trained.model.parameters():
        values = {name: torch.full((parameter.numel(),), number) for name, number in (("param", 3.0), ("exp_avg", 2.0))}
        part._set_main_param_and_optimizer_states(parameter, values | {"exp_avg_sq": values["param"]})
    trained.optimizer.put_away()
    assert memory.used == -12 * (MATRIX + BIAS)
    assert sorted(float(tensor.mean()) for tensor in trained.state()) == [2.0] * 2 + [3.0] * 4


def test_what_is_on_the_host_anyway_does_not_leave_again(memory: CountedMemory) -> None:
    trained = Trained("bf16", on_host=True)
    assert Leaves([([trained.ddp], trained.optimizer)], memory).optimizer.nbytes == 0


@given(sizes=st.lists(st.integers(1, 9), max_size=9), limit=st.integers(1, 12))
def test_chunks_are_as_full_as_the_limit_allows(sizes: list[int], limit: int) -> None:
    found = chunks(sizes, limit)
    assert [index for chunk in found for index in chunk] == list(range(len(sizes)))
    held = [sum(sizes[index] for index in chunk) for chunk in found]
    assert all(size <= limit or len(chunk) == 1 for chunk, size in zip(found, held, strict=True))
    assert all(size + sizes[later.start] > limit for size, later in zip(held, found[1:], strict=False))
