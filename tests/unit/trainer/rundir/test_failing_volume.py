"""A volume that fails for a while damages no checkpoint, and ends an attempt at most."""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from rljob_api.sections import Checkpoint as Wish
from rljob_trainer.reporting.losses import Losses
from rljob_trainer.rundir import atomic_files
from rljob_trainer.rundir.checkpoints import _Chunks, complete, digests_of, newest
from rljob_trainer.rundir.resume import begin
from rljob_trainer.rundir.retries import PASSING, StorageError
from support.trainer.checkpoint_store import checkpoints
from support.trainer.failing_calls import failing, patient


def unreadable(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("number", sorted(PASSING), ids=errno.errorcode.__getitem__)
def test_an_error_of_the_volume_that_passes_makes_no_checkpoint_damaged(tmp_path, monkeypatch, number):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    failing(monkeypatch, "fsync", *[number] * 3)
    losses = Losses()
    found = newest(tmp_path, patient(losses))
    assert (found.path.name, found.damaged, losses.take()) == ("iter_0000020", (), {"Storage": 3})
    assert losses.waiting_for is None


def test_a_volume_that_stays_away_ends_the_attempt_and_renames_nothing(tmp_path, monkeypatch):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    failing(monkeypatch, "fsync", *[errno.ESTALE] * 1000)
    with pytest.raises(StorageError, match=r"iter_0000020/.*Stale file handle \(tried again for \d+ s\)"):
        newest(tmp_path, patient())
    assert [path.name for path in complete(tmp_path)] == ["iter_0000020", "iter_0000010"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSPC])
def test_an_error_that_does_not_pass_says_nothing_of_the_checkpoint_either(tmp_path, monkeypatch, number):
    checkpoints(tmp_path).save(10)
    failing(monkeypatch, "fsync", number)
    with pytest.raises(StorageError, match=os.strerror(number)):
        newest(tmp_path, patient())


@pytest.mark.parametrize("number", [errno.EUCLEAN, errno.EBADMSG])
def test_damage_that_the_file_system_found_is_damage(tmp_path, monkeypatch, number):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    failing(monkeypatch, "fsync", number)
    assert newest(tmp_path, patient()).path.name == "iter_0000010"


def test_a_file_that_the_disk_does_not_give_is_no_damage(tmp_path):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    unreadable(tmp_path / "iter_0000020" / "common.pt")
    with pytest.raises(StorageError, match="common"):
        newest(tmp_path, patient())


def test_what_was_read_before_an_error_is_not_read_again(tmp_path, monkeypatch):
    content = bytes(range(250)) * 4
    (tmp_path / "shard").write_bytes(content)
    reads: list[int] = []
    real = _Chunks.next

    def next_(self) -> bytes:
        reads.append(self.place)
        if len(reads) == 3 and self.file:
            self.file.close()
            self.file = None
            raise OSError(errno.EIO, "I/O error")
        return real(self)

    monkeypatch.setattr(_Chunks, "next", next_)
    assert digests_of(tmp_path, chunk_bytes=400, patience=patient()) == {"shard": xxhash.xxh3_128_hexdigest(content)}
    assert reads == [0, 400, 800, 800, 1000]


def test_a_directory_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    checkpoints(tmp_path).save(10)
    monkeypatch.setattr(Path, "iterdir", lambda self: (_ for _ in ()).throw(PermissionError(errno.EACCES, "no")))
    with pytest.raises(StorageError):
        newest(tmp_path)


def test_an_old_checkpoint_that_stays_is_a_warning_and_goes_at_the_next_save(tmp_path, monkeypatch):
    losses, saved = Losses(), []
    store = replace(
        checkpoints(tmp_path, keep=1), patience=patient(losses), saved=lambda step, path, seconds: saved.append(step)
    )
    store.save(10)
    with monkeypatch.context() as busy:
        busy.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(OSError(errno.ENOTEMPTY, ".nfs0001")))
        store.save(20)
    assert (saved, losses.take()) == ([10, 20], {"Cleaning": 1})
    assert [path.name for path in complete(tmp_path)] == ["iter_0000020"], "nobody resumes from half a checkpoint"
    store.save(30)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["iter_0000030"]


def test_a_draft_that_stays_hinders_neither_start_nor_save(tmp_path, monkeypatch):
    run = tmp_path / "run"
    store = checkpoints(run / "checkpoints")
    store.learner.dies = True
    with pytest.raises(KeyboardInterrupt):
        store.save(10)
    store.learner.dies = False
    monkeypatch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(OSError(errno.EBUSY, "busy")))
    assert begin(run, Wish(), "origin", patient()).step == 0
    store.save(10)
    assert begin(run, Wish(), "origin", patient()).step == 10


@pytest.mark.parametrize("number", range(12))
def test_a_save_survives_an_error_of_the_volume_wherever_it_comes(tmp_path, monkeypatch, number):
    monkeypatch.setattr(atomic_files.os, "fsync", fails_at(os.fsync, number))
    store = replace(checkpoints(tmp_path), patience=patient())
    store.save(10)
    assert newest(tmp_path, patient()).checkpoint.step == 10


def fails_at(real: Callable[..., None], number: int) -> Callable[..., None]:
    calls = iter(range(1000))

    def call(*args) -> None:
        if next(calls) == number:
            raise OSError(errno.ESTALE, "Stale file handle")
        real(*args)

    return call


def test_a_rename_whose_answer_was_lost_is_done(tmp_path, monkeypatch):
    real, lost = Path.rename, ["once"]

    def rename(self, target):
        real(self, target)
        if lost and lost.pop():
            raise OSError(errno.ETIMEDOUT, "timed out")

    monkeypatch.setattr(Path, "rename", rename)
    replace(checkpoints(tmp_path), patience=patient()).save(10)
    assert newest(tmp_path).checkpoint.step == 10
