"""Checkpoints are complete or not there, and damage is seen."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rljob_trainer.checkpoints import MANIFEST, CheckpointError, Checkpoints, complete, newest, set_aside, verified
from rljob_trainer.fence import Fence, FencedError, Name


class Learner:
    """Writes two small files; can be told to die on the way."""

    dies = False

    def save(self, directory: Path) -> None:
        (directory / "__0_0.distcp").write_bytes(b"weights")
        if self.dies:
            raise KeyboardInterrupt
        (directory / "common.pt").write_bytes(b"common")


@dataclass
class Stream:
    position: tuple[int, int] = (0, 32)
    fingerprint: str = "abc"


class Journal:
    def __init__(self) -> None:
        self.commits: list[tuple[int, str]] = []

    def committed(self, step: int, checkpoint: str) -> None:
        self.commits.append((step, checkpoint))


def checkpoints(directory: Path, keep: int = 2, may_write: Callable[[], None] = lambda: None) -> Checkpoints:
    return Checkpoints(
        directory,
        keep,
        "tp1 pp1 dp1",
        "model",
        "fp32",
        Learner(),
        Stream(),
        Journal(),
        saved=lambda step, path: None,
        may_write=may_write,
    )


def test_a_saved_checkpoint_is_found_verified_and_says_where_the_data_goes_on(tmp_path):
    checkpoints(tmp_path).save(10)
    found = newest(tmp_path)
    path, checkpoint = found.path, found.checkpoint
    assert path.name == "iter_0000010"
    assert (checkpoint.step, checkpoint.prompts) == (10, (0, 32))
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "10"


def test_a_save_that_is_killed_leaves_no_checkpoint_and_does_not_hinder_the_next(tmp_path):
    store = checkpoints(tmp_path)
    store.learner.dies = True
    with pytest.raises(KeyboardInterrupt):
        store.save(10)
    assert newest(tmp_path) is None
    store.learner.dies = False
    store.save(10)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["iter_0000010"]


def test_old_checkpoints_go_and_the_newest_stay(tmp_path):
    store = checkpoints(tmp_path, keep=2)
    store.save(10), store.save(20), store.save(30)
    assert [path.name for path in complete(tmp_path)] == ["iter_0000030", "iter_0000020"]


@pytest.mark.parametrize(
    "damage", [lambda f: f.unlink(), lambda f: f.write_bytes(b"weightz"), lambda f: f.write_bytes(b"")]
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_taken(tmp_path, damage):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    damage(tmp_path / "iter_0000020" / "__0_0.distcp")
    with pytest.raises(CheckpointError, match="__0_0"):
        verified(tmp_path / "iter_0000020")
    found = newest(tmp_path)
    assert found.path.name == "iter_0000010"
    assert len(found.damaged) == 1
    assert "__0_0" in found.damaged[0]


def test_only_damaged_checkpoints_are_an_error_and_no_fresh_start(tmp_path):
    checkpoints(tmp_path).save(10)
    (tmp_path / "iter_0000010" / "rljob.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        newest(tmp_path)


def test_a_run_that_goes_on_from_an_older_checkpoint_makes_the_damaged_one_again(tmp_path):
    store = checkpoints(tmp_path, keep=1)
    store.save(10)
    store = checkpoints(tmp_path, keep=2)
    store.save(20)
    (tmp_path / "iter_0000020" / "common.pt").unlink()
    set_aside(tmp_path, newest(tmp_path).checkpoint.step)
    assert [path.name for path in complete(tmp_path)] == ["iter_0000010"]
    store.save(20)
    assert newest(tmp_path).path.name == "iter_0000020"
    assert (tmp_path / "damaged-iter_0000020" / "__0_0.distcp").exists(), "nothing is thrown away"


def taken(directory: Path, attempt: int) -> Fence:
    fence = Fence(directory, Name("7f3a", attempt))
    fence.claim()
    return fence


def test_a_driver_that_was_left_behind_saves_nothing_and_leaves_its_successors_draft_alone(tmp_path):
    store = checkpoints(tmp_path, may_write=taken(tmp_path, 1).check)
    taken(tmp_path, 2)
    draft = tmp_path / "saving-iter_0000010"
    draft.mkdir()
    with pytest.raises(FencedError):
        store.save(10)
    assert draft.is_dir()


def test_a_checkpoint_that_was_being_written_meanwhile_does_not_count(tmp_path):
    store = checkpoints(tmp_path, may_write=taken(tmp_path, 1).check)
    save = store.learner.save
    store.learner.save = lambda directory: (save(directory), taken(tmp_path, 2))
    with pytest.raises(FencedError):
        store.save(10)
    assert newest(tmp_path) is None


def test_a_checkpoint_that_is_damaged_twice_is_kept_twice(tmp_path):
    store = checkpoints(tmp_path)
    for _ in range(2):
        store.save(20)
        set_aside(tmp_path, 10)
    names = sorted(path.name for path in tmp_path.glob("damaged-*"))
    assert names == ["damaged-iter_0000020", "damaged-iter_0000020.2"]


def flip(path: Path, place: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def unreadable(path: Path) -> None:
    path.unlink()
    path.symlink_to("/proc/self/mem")


DAMAGES = {
    "a missing shard": (lambda path: (path / "__0_0.distcp").unlink(), "missing files ['__0_0.distcp']"),
    "a truncated file": (lambda path: os.truncate(path / "__0_0.distcp", 3), "changed files ['__0_0.distcp']"),
    "a file that the disk does not give": (lambda path: unreadable(path / "__0_0.distcp"), "a file cannot be read: "),
    "a flipped bit": (lambda path: flip(path / "common.pt", 2), "changed files ['common.pt']"),
    "no rljob.json": (lambda path: (path / MANIFEST).unlink(), "rljob.json is not there"),
    "a truncated rljob.json": (lambda path: os.truncate(path / MANIFEST, 50), "rljob.json cannot be read"),
    "an rljob.json of something else": (lambda path: (path / MANIFEST).write_text("{}"), "cannot be read: step: Field"),
    "another position of the data": (
        lambda path: (path / MANIFEST).write_text((path / MANIFEST).read_text().replace("32", "33")),
        "rljob.json cannot be read: it is not as it was written",
    ),
    "an empty directory": (lambda path: [file.unlink() for file in path.iterdir()], "rljob.json is not there"),
    "the checkpoint of another step": (
        lambda path: shutil.copytree(path.with_name("iter_0000010"), path, dirs_exist_ok=True),
        "is that of step 10",
    ),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_every_damage_is_named_and_the_older_checkpoint_taken(tmp_path, damage, said):
    store = checkpoints(tmp_path)
    store.save(10), store.save(20)
    damage(tmp_path / "iter_0000020")
    found = newest(tmp_path)
    assert found.path.name == "iter_0000010"
    assert said in found.damaged[0]


def test_what_is_no_checkpoint_of_ours_is_neither_taken_nor_moved_nor_deleted(tmp_path):
    store = checkpoints(tmp_path, keep=1)
    (tmp_path / "iter_backup").mkdir()
    (tmp_path / "iter_0000030.old").mkdir()
    (tmp_path / "iter_0000040").write_text("a file")
    store.save(10), store.save(20)
    assert newest(tmp_path).damaged == ()
    set_aside(tmp_path, 20)
    assert {"iter_backup", "iter_0000030.old", "iter_0000040"} < {path.name for path in tmp_path.iterdir()}


def test_a_checkpoint_of_megatron_itself_is_passed_over(tmp_path):
    checkpoints(tmp_path).save(10)
    (tmp_path / "iter_0000500").mkdir()
    (tmp_path / "iter_0000500" / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    found = newest(tmp_path)
    assert found.path.name == "iter_0000010"
    assert "iter_0000500: rljob.json is not there" in found.damaged[0]
