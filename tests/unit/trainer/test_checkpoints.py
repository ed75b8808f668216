"""Checkpoints are complete or not there, and damage is seen."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rljob_trainer.checkpoints import CheckpointError, Checkpoints, complete, newest, set_aside, verified
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
    path, checkpoint = newest(tmp_path)
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
    path, _ = newest(tmp_path)
    assert path.name == "iter_0000010"


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
    _, checkpoint = newest(tmp_path)
    set_aside(tmp_path, checkpoint.step)
    assert [path.name for path in complete(tmp_path)] == ["iter_0000010"]
    store.save(20)
    assert newest(tmp_path)[0].name == "iter_0000020"
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
