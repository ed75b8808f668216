"""What is given to Megatron to be written, and what a learner is after it has read a checkpoint."""

import io
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from megatron.core import dist_checkpointing
from torch.distributed.checkpoint import CheckpointException

from rljob_api import sections
from rljob_api.sections import Schedule
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.learners.errors import CheckpointFormatError, CriticMismatchError, DamagedCheckpointError
from rljob_trainer.learners.rank.checkpoint import checkpoint
from rljob_trainer.learners.rank.checkpoint.draft import Draft, finish, narrow, sums_path, write_now
from rljob_trainer.learners.rank.checkpoint.moved import Moved
from rljob_trainer.learners.rank.checkpoint.staging import Staging
from rljob_trainer.learners.rank.critic import Critic
from rljob_trainer.learners.rank.optimizer.offloadable_tensors import HostMemory
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel, optimizer_tensors
from rljob_trainer.rundir.retries import PATIENT, StorageError
from support.trainer.lone_rank import SmallModel, lone_rank

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]
LAYOUT = ParallelLayout()
SETTINGS = sections.Optimizer(learning_rate=0.1, schedule=Schedule.LINEAR)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_view_of_a_buffer_is_written_alone_and_not_copied(dtype: torch.dtype) -> None:
    buffer = torch.arange(100_000).to(dtype)
    view = buffer[1000:1600].view(20, 30)
    narrowed = narrow(view)
    assert torch.equal(narrowed, view) and narrowed.dtype == dtype
    assert narrowed.data_ptr() == view.data_ptr()
    assert narrowed.untyped_storage().nbytes() == view.numel() * view.itemsize
    file = io.BytesIO()
    torch.save(narrowed, file)
    assert file.tell() < 10_000


@pytest.mark.parametrize("tensor", [torch.ones(9)[4], torch.zeros(0, 4), torch.ones(9, requires_grad=True)[2:4]])
def test_any_tensor_keeps_its_numbers(tensor: torch.Tensor) -> None:
    assert torch.equal(narrow(tensor), tensor)


def test_what_is_not_in_one_piece_is_copied() -> None:
    turned = torch.arange(12.0).view(3, 4)[1:].t()
    narrowed = narrow(turned)
    assert torch.equal(narrowed, turned) and narrowed.untyped_storage().nbytes() == 8 * 4


@pytest.fixture(scope="module")
def rank() -> Iterator[None]:
    """This process is the only rank of a learner."""
    with lone_rank():
        yield


class Learner:
    """A model and its optimizer, with a critic if it is said to have one."""

    def __init__(
        self, settings: sections.Optimizer = SETTINGS, total_steps: int = 10, has_critic: bool = False
    ) -> None:
        self.chunks = data_parallel([SmallModel()])
        (self.ddp,) = self.chunks
        self.optimizer = Optimizer(self.chunks, settings, total_steps, "fp32")
        self.beside = Learner(settings) if has_critic else None
        self.staging, self.moved = Staging(HostMemory()), Moved()

    @property
    def critic(self) -> Critic | None:
        return cast(Critic, self.beside) if self.beside else None  # all that a checkpoint reads of a critic

    def step(self, seed: int) -> None:
        self.ddp.zero_grad_buffer()
        self.optimizer.megatron.zero_grad()
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.ddp.module.parameters():
            parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))
        self.optimizer.step()
        if self.beside is not None:
            self.beside.step(seed + 100)

    def numbers(self) -> list[torch.Tensor]:
        """Return all weights, masters and moments, those of a critic included."""
        own = [*self.ddp.module.parameters(), *optimizer_tensors(self.optimizer)]
        return [each.detach().clone() for each in own] + (self.beside.numbers() if self.beside else [])

    def save(self, directory: Path, layout: ParallelLayout = LAYOUT, **counters: int) -> Path:
        write_now(self.stage(directory, layout, **counters), PATIENT)
        return directory

    def stage(self, directory: Path, layout: ParallelLayout = LAYOUT, **counters: int) -> Draft:
        directory.mkdir(parents=True, exist_ok=True)
        return checkpoint.stage(directory, self.chunks, self.optimizer, layout, counters, self.staging, self.critic)

    def load(self, directory: Path) -> dict[str, int]:
        return checkpoint.load(directory, self.chunks, self.optimizer, LAYOUT, self.moved, self.critic)


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize("has_critic", [False, True])
def test_a_learner_that_resumes_goes_on_as_the_one_that_saved(tmp_path: Path, has_critic: bool) -> None:
    first, second = Learner(has_critic=has_critic), Learner(has_critic=has_critic)
    first.step(1)
    first.step(2)
    assert second.load(first.save(tmp_path / "new" / "saved", step=2, version=7)) == {"step": 2, "version": 7}
    assert same(first.numbers(), second.numbers())
    first.step(3)
    second.step(3)
    assert second.optimizer.learning_rate == first.optimizer.learning_rate
    assert same(first.numbers(), second.numbers())


@pytest.mark.usefixtures("rank")
def test_a_learner_resumes_with_the_rate_and_the_schedule_of_its_manifest(tmp_path: Path) -> None:
    first = Learner()
    first.step(1)
    changes = {"learning_rate": 0.02, "min_learning_rate": 0.01, "beta1": 0.5, "beta2": 0.6, "epsilon": 1e-3}
    changed = SETTINGS.model_copy(update=changes)
    resumed, anew = Learner(changed, total_steps=100), Learner(changed, total_steps=100)
    resumed.load(first.save(tmp_path))
    for learner in (resumed, anew):
        learner.step(2)
    anew.step(3)
    resumed.step(3)
    anew.step(4)
    assert resumed.optimizer.learning_rate == anew.optimizer.learning_rate
    taken = [{key: group[key] for key in ("betas", "eps")} for group in resumed.optimizer.megatron.param_groups]
    assert taken == [{"betas": (0.5, 0.6), "eps": 1e-3}] * len(taken)


@pytest.mark.usefixtures("rank")
def test_tensors_have_the_names_by_which_other_versions_find_them(tmp_path: Path) -> None:
    names = set(dist_checkpointing.load_tensors_metadata(str(Learner(has_critic=True).save(tmp_path))))
    weights = {name for name in names if not name.startswith(("optimizer.", "critic.optimizer."))}
    assert weights == {"matrix", "bias", "critic.matrix", "critic.bias"}
    assert {f"critic.{name}" for name in names if not name.startswith("critic.")} <= names


@pytest.mark.usefixtures("rank")
def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    first, second = Learner(has_critic=True), Learner(has_critic=True)
    first.step(1)
    then = first.numbers()
    draft = first.stage(tmp_path, step=1)
    first.step(2)
    finish(draft, [draft.write(PATIENT, first.moved)])
    second.load(tmp_path)
    assert same(second.numbers(), then)
    assert not same(first.numbers(), then)


@pytest.mark.usefixtures("rank")
def test_what_is_written_and_read_is_counted(tmp_path: Path) -> None:
    learner = Learner()
    draft = learner.stage(tmp_path)
    finish(draft, [draft.write(PATIENT, learner.moved)])
    written = learner.moved.count
    assert written == (tmp_path / "__0_0.distcp").stat().st_size
    learner.load(tmp_path)
    weights = sum(each.numel() * 4 for each in learner.ddp.module.parameters())
    assert written < learner.moved.count < 2 * written - weights, "weights are those of their masters"


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize("place", range(4))
def test_damage_is_found_by_who_reads_it(tmp_path: Path, place: int) -> None:
    learner = Learner()
    learner.step(1)
    learner.save(tmp_path)
    path = tmp_path / "__0_0.distcp"
    content = bytearray(path.read_bytes())
    sums = sorted(map(int, json.loads((tmp_path / "__0_0.distcp.sums").read_text())))
    read = dist_checkpointing.load_tensors_metadata(str(tmp_path)).keys()
    assert len(sums) == len(read) + 1, "each tensor, and the random state"
    found = []
    for begin, end in itertools.pairwise([*sums, len(content)]):
        damaged = bytearray(content)
        damaged[begin + (end - begin) * place // 4] ^= 1
        path.write_bytes(damaged)
        try:
            Learner().load(tmp_path)
        except DamagedCheckpointError as error:
            found.append(f"{path}: bytes {begin} to {end} are not as they were written" == str(error))
    assert found == [True] * (len(sums) - 2), "all but the two weights, which are not read"


def draws() -> list[float]:
    return [random.random(), float(np.random.random()), float(torch.rand(()))]


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize(("layout", "is_same"), [(LAYOUT, True), (ParallelLayout(2, 1, 1), False)])
def test_random_numbers_go_on_where_they_were_in_the_same_layout_alone(
    tmp_path: Path, layout: ParallelLayout, is_same: bool
) -> None:
    learner = Learner()
    learner.save(tmp_path, layout, step=1)
    drawn = draws()
    assert learner.load(tmp_path) == {"step": 1}
    assert [one == other for one, other in zip(drawn, draws(), strict=True)] == [is_same] * 3


@pytest.mark.usefixtures("rank")
@pytest.mark.parametrize(
    ("saved", "wanted", "words"),
    [
        (True, False, "was written with a critic, and the manifest asks for no critic"),
        (False, True, "was written with no critic, and the manifest asks for a critic"),
    ],
)
def test_a_checkpoint_and_a_manifest_agree_about_the_critic_before_anything_changes(
    tmp_path: Path, saved: bool, wanted: bool, words: str
) -> None:
    learner = Learner(has_critic=wanted)
    Learner(has_critic=saved).save(tmp_path)
    learner.step(1)
    before = learner.numbers()
    with pytest.raises(CriticMismatchError, match=rf"{tmp_path} {words} \(spec\.algorithm\.critic\): keep"):
        learner.load(tmp_path)
    assert same(learner.numbers(), before)


@pytest.mark.usefixtures("rank")
def test_weights_alone_are_no_checkpoint_of_a_learner(tmp_path: Path) -> None:
    checkpoint.save_weights(tmp_path, SmallModel())
    with pytest.raises(
        CheckpointFormatError,
        match=rf"{tmp_path} holds optimizer state in format weights; this version reads fully_reshardable",
    ):
        Learner().load(tmp_path)


@pytest.mark.usefixtures("rank")
def test_the_weights_of_a_learner_are_read_alone(tmp_path: Path) -> None:
    learner, model = Learner(), SmallModel()
    learner.step(1)
    checkpoint.load_weights(learner.save(tmp_path), model)
    assert same(list(model.parameters()), list(learner.ddp.module.parameters()))


@pytest.mark.usefixtures("rank")
def test_a_disk_that_takes_nothing_fails_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        Learner().save(tmp_path)
    assert not (tmp_path / "metadata.json").exists()


@pytest.mark.usefixtures("rank")
def test_a_damaged_file_of_an_older_version_is_an_error_of_reading_and_no_bad_format(tmp_path: Path) -> None:
    learner = Learner()
    (file,) = learner.save(tmp_path).glob("*.distcp")
    sums_path(file).unlink()
    file.write_bytes(b"")
    with pytest.raises(CheckpointException):
        learner.load(tmp_path)


@pytest.mark.usefixtures("rank")
def test_counters_come_back_as_they_were_and_older_checkpoints_lack_some(tmp_path: Path) -> None:
    learner = Learner()
    counters = {"step": 2, "skipped": 3, "skips": [0, 1] * 50}
    assert learner.load(learner.save(tmp_path / "new", **counters)) == counters
    assert learner.load(learner.save(tmp_path / "old", step=2, skipped=3)) == {"step": 2, "skipped": 3}
