"""A rank reads a checkpoint while the volume fails for a moment: the same state, or an error of the volume."""

import errno
import io
import os
import pathlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rljob_api import sections
from rljob_api.exits import Exit
from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.driver import exit_of
from rljob_trainer.learners.errors import CheckpointFormatError
from rljob_trainer.learners.group import REFUSALS
from rljob_trainer.learners.rank.checkpoint import checkpoint
from rljob_trainer.learners.rank.checkpoint.draft import write_now
from rljob_trainer.learners.rank.checkpoint.moved import Moved
from rljob_trainer.learners.rank.checkpoint.staging import Staging
from rljob_trainer.learners.rank.optimizer.offloadable_tensors import HostMemory
from rljob_trainer.learners.rank.optimizer.optimizer import Optimizer, data_parallel
from rljob_trainer.rundir.retries import PATIENT, Patience, StorageError
from support.trainer.failing_calls import patient
from support.trainer.lone_rank import SmallModel, lone_rank

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
]
LAYOUT = ParallelLayout()
SETTINGS = sections.Optimizer(learning_rate=0.1)
FILES = ("metadata.json", "common.pt", ".metadata", "__0_0.distcp")


class Volume:
    """Fails to open or to read a file of a checkpoint so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, number: int, times: int) -> None:
        self._name, self._number, self.left = name, number, times
        self._shards: set[int] = set()
        self._open, self._preadv, self._open_of_python = os.open, os.preadv, pathlib.io.open
        monkeypatch.setattr(os, "open", self.opened)
        monkeypatch.setattr(os, "preadv", self.read)
        monkeypatch.setattr(pathlib.io, "open", self.opened_by_python)

    def opened(self, path, *args, **kwargs) -> int:
        descriptor = self._open(path, *args, **kwargs)
        self._shards.discard(descriptor)
        if str(path).endswith(f"/{self._name}"):
            self._shards.add(descriptor)
        return descriptor

    def read(self, descriptor, *args) -> int:
        if descriptor in self._shards:
            self._fail()
        return self._preadv(descriptor, *args)

    def opened_by_python(self, path, *args, **kwargs) -> io.IOBase:
        if str(path).endswith(f"/{self._name}"):
            self._fail()
        return self._open_of_python(path, *args, **kwargs)

    def _fail(self) -> None:
        if self.left:
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))


@pytest.fixture(scope="module")
def ranks() -> Iterator[None]:
    with lone_rank():
        yield


class Rank:
    def __init__(self, patience: Patience) -> None:
        (self.ddp,) = data_parallel([SmallModel()])
        self.optimizer = Optimizer([self.ddp], SETTINGS, 10, "fp32")
        self.patience = patience

    def save(self, directory: Path) -> None:
        directory.mkdir()
        staging = Staging(HostMemory())
        write_now(checkpoint.stage(directory, [self.ddp], self.optimizer, LAYOUT, {"step": 3}, staging), PATIENT)

    def load(self, directory: Path) -> dict[str, int]:
        return checkpoint.load(directory, [self.ddp], self.optimizer, LAYOUT, Moved(), patience=self.patience)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN])
@pytest.mark.parametrize("name", FILES)
def test_a_rank_waits_for_a_volume_and_reads_the_same_state(ranks, tmp_path, monkeypatch, name, number):
    rank = Rank(patient())
    rank.save(tmp_path / "saved")
    written = rank.ddp.module.matrix.detach().clone()
    rank.ddp.module.matrix.data.zero_()
    volume = Volume(monkeypatch, name, number, times=3)
    assert rank.load(tmp_path / "saved") == {"step": 3}
    assert torch.equal(rank.ddp.module.matrix, written)
    assert volume.left == 0


@pytest.mark.parametrize("name", FILES)
def test_a_volume_that_stays_away_ends_the_attempt_and_not_the_job(ranks, tmp_path, monkeypatch, name):
    rank = Rank(patient())
    rank.save(tmp_path / "saved")
    Volume(monkeypatch, name, errno.ESTALE, times=10_000)
    with pytest.raises(StorageError, match=f"{name}: .*tried again for") as caught:
        rank.load(tmp_path / "saved")
    assert exit_of(caught.value) is Exit.AWAY
    assert isinstance(caught.value, REFUSALS), "the driver sees it as it is"


def test_other_bytes_are_not_waited_for(ranks, tmp_path):
    rank = Rank(Patience(pause=lambda _: pytest.fail("waited")))
    rank.save(tmp_path / "saved")
    (tmp_path / "saved" / ".metadata").write_bytes(b"junk")
    with pytest.raises(CheckpointFormatError, match=r"\.metadata"):
        rank.load(tmp_path / "saved")
