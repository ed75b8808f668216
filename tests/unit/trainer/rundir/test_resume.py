"""Where a run begins, and what becomes of what was there."""

import shutil
from pathlib import Path

import pytest

from rljob_api.sections import Checkpoint as Wish
from rljob_trainer.rundir.checkpoints import CheckpointError, complete, step_of
from rljob_trainer.rundir.resume import begin
from support.trainer.saved_run import damage, saved_run


def saved(run: Path, *steps: int) -> None:
    """Write what a run leaves that has saved at these steps."""
    saved_run(run, steps=max(steps), interval=steps[0])
    for path in complete(run / "checkpoints"):
        if step_of(path) not in steps:
            shutil.rmtree(path)


def steps(run: Path) -> list[str]:
    return [path.name for path in complete(run / "checkpoints")]


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


AUTO, FRESH, MUST = (Wish(resume=resume) for resume in ("Auto", "Fresh", "MustResume"))


def test_auto_goes_on_where_something_is_and_begins_where_nothing_is(tmp_path):
    assert (begin(tmp_path, AUTO, "a").step, str(begin(tmp_path, AUTO, "a"))) == (0, "starts at step 0")
    saved(tmp_path, 10, 20)
    assert str(begin(tmp_path, AUTO, "b")) == "resumes from iter_0000020"


def test_an_older_checkpoint_is_taken_and_it_is_said_why_and_where_the_damaged_one_is(tmp_path):
    saved(tmp_path, 10, 20)
    damage(tmp_path, 20)
    start = begin(tmp_path, AUTO, "a")
    assert start.step == 10
    assert str(start).startswith("resumes from iter_0000010; damaged: ")
    assert str(start).endswith("changed files ['__0_0.distcp']; kept as damaged-iter_0000020")
    assert [finding.name for finding in start.findings] == ["DamagedCheckpoint"]
    assert steps(tmp_path) == ["iter_0000010"]


def test_fresh_begins_anew_and_keeps_everything(tmp_path):
    saved(tmp_path, 10, 20)
    before = files(tmp_path)
    start = begin(tmp_path, FRESH, "a")
    assert (start.step, str(start)) == (0, "starts at step 0; the old files are in set-aside")
    assert files(tmp_path / "set-aside") == before
    assert steps(tmp_path) == []


def test_fresh_twice_keeps_both(tmp_path):
    saved(tmp_path, 10)
    begin(tmp_path, FRESH, "a")
    saved(tmp_path, 10)
    assert begin(tmp_path, FRESH, "b").aside == tmp_path / "set-aside.2"


def test_fresh_in_an_empty_directory_leaves_nothing_aside(tmp_path):
    assert begin(tmp_path, FRESH, "a").aside is None
    assert files(tmp_path) == ["origin.txt"]


@pytest.mark.parametrize("wish", [FRESH, Wish(resume_step=10)])
def test_a_later_attempt_goes_on_from_what_the_run_has_saved_itself(tmp_path, wish):
    saved(tmp_path, 10, 20)
    begin(tmp_path, wish, "a")
    saved(tmp_path, 12)
    start = begin(tmp_path, wish, "a")
    assert (start.step, start.aside) == (12, None)


@pytest.mark.parametrize("wish", [FRESH, Wish(resume_step=10)])
def test_a_start_that_was_killed_before_all_was_in_place_is_repeated(tmp_path, wish, monkeypatch):
    saved(tmp_path, 10, 20)
    with monkeypatch.context() as killed:
        killed.setattr("rljob_trainer.rundir.resume.newest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            begin(tmp_path, wish, "a")
    start = begin(tmp_path, wish, "a")
    assert start.step == (wish.resume_step or 0)
    assert (tmp_path / "set-aside" / "checkpoints" / "iter_0000020").exists()


def test_a_run_that_began_otherwise_begins_anew_when_somebody_else_asks(tmp_path):
    begin(tmp_path, AUTO, "a")
    saved(tmp_path, 10)
    assert begin(tmp_path, FRESH, "b").step == 0


def test_a_named_step_is_gone_on_from_and_what_came_later_is_kept(tmp_path):
    saved(tmp_path, 2, 4, 6)
    start = begin(tmp_path, Wish(resume_step=4), "a")
    assert str(start) == "resumes from iter_0000004; the old files are in set-aside"
    assert steps(tmp_path) == ["iter_0000004", "iter_0000002"]
    assert files(tmp_path / "set-aside") == [
        "checkpoints/iter_0000006/__0_0.distcp",
        "checkpoints/iter_0000006/common.pt",
        "checkpoints/iter_0000006/rljob.json",
        "events.jsonl",
        "journal.jsonl",
        "rollouts/step-0000004.jsonl.zst",
        "rollouts/step-0000005.jsonl.zst",
    ]
    assert (tmp_path / "journal.jsonl").exists()
    assert (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "4"


def test_a_step_that_is_not_there_is_an_error_with_those_that_are(tmp_path):
    saved(tmp_path, 10, 20)
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=r"iter_0000015; checkpoints there are of steps 10, 20$"):
        begin(tmp_path, Wish(resume_step=15), "a")
    assert files(tmp_path) == before


def test_a_step_that_was_set_aside_is_found_again(tmp_path):
    saved(tmp_path, 10, 20)
    begin(tmp_path, Wish(resume_step=10), "a")
    with pytest.raises(CheckpointError, match=r"steps 10; \S+/set-aside/checkpoints/iter_0000020 was set aside"):
        begin(tmp_path, Wish(resume_step=20), "b")


def test_a_step_that_is_damaged_is_an_error_and_nothing_is_moved(tmp_path):
    saved(tmp_path, 10, 20, 30)
    damage(tmp_path, 20)
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=r"resumeStep 20: .*changed files .* are of steps 10, 30"):
        begin(tmp_path, Wish(resume_step=20), "a")
    assert files(tmp_path) == before


def test_must_resume_shows_what_it_looked_for_and_what_lies_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"looked for a checkpoint \S+/checkpoints/iter_\*; .* is empty"):
        begin(tmp_path, MUST, "a")
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(CheckpointError, match=r"checkpoints does not exist; nearest: \S+/checkpoint$"):
        begin(tmp_path, MUST, "a")
    (tmp_path / "checkpoints" / "global_step_10").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"checkpoints holds global_step_10/"):
        begin(tmp_path, MUST, "a")


def test_must_resume_goes_on_when_there_is_something(tmp_path):
    saved(tmp_path, 10)
    assert begin(tmp_path, MUST, "a").step == 10


@pytest.mark.parametrize("wish", [AUTO, MUST])
def test_checkpoints_that_are_all_damaged_are_an_error_that_says_how_to_begin_anew(tmp_path, wish):
    saved(tmp_path, 10)
    damage(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"changed files .*resume: Fresh keeps what is there and begins anew"):
        begin(tmp_path, wish, "a")
    assert begin(tmp_path, FRESH, "a").step == 0
