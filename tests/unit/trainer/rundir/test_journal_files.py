"""A journal of several files: a run that is killed at any change of a file and resumed leaves the same bytes."""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from rljob_api.sections import Checkpoint as Wish
from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.rundir.checkpoints import name_of
from rljob_trainer.rundir.inspection import JournalFacts, of_journal
from rljob_trainer.rundir.journal import OLDER, Journal, JournalError, files, read
from rljob_trainer.rundir.resume import begin
from rljob_trainer.samples import Prompt
from support.trainer.checkpoint_store import checkpoints

ROWS, PER_STEP, STEPS, SAVE_EVERY, FULL = 5, 2, 12, 2, 420
LEAD = Lead(STEPS, max_staleness=1)
CHANGES = ((os, "write"), (os, "ftruncate"), (Path, "rename"), (Path, "replace"), (Path, "unlink"))
"""every way in which the journal changes what is on the disk"""


class Kill(BaseException):
    """Nothing after it is done."""


def stream() -> PromptStream:
    return PromptStream(Held([Prompt(str(row), "", "", (), "", {}) for row in range(ROWS)]), seed=0, shuffle=True)


def run(path: Path, saved: list[int], full: int = FULL, steps: int = STEPS) -> None:
    """Do what a run with rollouts ahead does to a journal, from the newest of the checkpoints in `saved`."""
    journal, issuing, first = Journal(path, full=full), stream(), saved[-1]
    journal.rewind(first, name_of(first))
    issuing.seek(issuing.position_after(journal.issued_count))
    journal.check(stream().uids)
    scheduler = PromptScheduler(issuing, journal, LEAD, PER_STEP)
    for step in range(first, steps):
        scheduler.issue(step, PER_STEP)
        journal.consumed(step)
        if (step + 1) % SAVE_EVERY == 0:
            journal.committed(step + 1, name_of(step + 1))
            saved.append(step + 1)
    journal.close()


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(directory)): each.read_bytes()
        for each in sorted(directory.rglob("*.jsonl"))
        if each.is_file()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = tmp_path_factory.mktemp("whole")
    run(directory / "journal.jsonl", [0])
    return content(directory)


def counted(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Call `change` before each change of the disk."""

    def before(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            change()
            return real(*arguments, **options)

        return call

    for owner, name in CHANGES:
        monkeypatch.setattr(owner, name, before(getattr(owner, name)))


def killed(path: Path, saved: list[int], at: int) -> bool:
    """Run until the change of this number; return whether there were so many."""
    numbers = count(1)

    def change() -> None:
        if next(numbers) == at:
            raise Kill

    with pytest.MonkeyPatch.context() as patch:
        counted(patch, change)
        try:
            run(path, saved)
        except Kill:
            return True
    return False


def kills() -> Iterator[int]:
    """Yield the number of every change of a whole run."""
    yield from range(1, 38)


def test_no_change_of_a_whole_run_is_left_out(tmp_path: Path) -> None:
    assert not killed(tmp_path / "journal.jsonl", [0], max(kills()) + 1)


def test_a_whole_run_fills_several_files(whole: dict[str, bytes]) -> None:
    assert len(whole) > 3
    assert max(map(len, whole.values())) < FULL + 400
    (first, *_) = whole["journal.jsonl"].splitlines()
    assert first.startswith(b'{"event":"continued","step":')


@pytest.mark.parametrize("at", list(kills()))
def test_a_run_killed_at_any_change_and_resumed_leaves_the_same_files(
    tmp_path: Path, whole: dict[str, bytes], at: int
) -> None:
    path, saved = tmp_path / "journal.jsonl", [0]
    was_killed = killed(path, saved, at)
    assert was_killed
    killed(path, saved, 3)  # and once more, while it resumes
    run(path, saved)
    assert content(tmp_path) == whole


@pytest.mark.parametrize("at", list(kills()))
def test_a_newest_checkpoint_that_was_never_complete_changes_nothing(
    tmp_path: Path, whole: dict[str, bytes], at: int
) -> None:
    path, saved = tmp_path / "journal.jsonl", [0]
    killed(path, saved, at)
    run(path, saved[:-1] or [0])
    assert content(tmp_path) == whole


@pytest.mark.parametrize("step", list(range(0, STEPS + 1, SAVE_EVERY)))
def test_a_run_goes_back_to_a_checkpoint_in_any_file(tmp_path: Path, whole: dict[str, bytes], step: int) -> None:
    path = tmp_path / "journal.jsonl"
    run(path, [0])
    run(path, [step])
    assert content(tmp_path) == whole


def test_a_long_journal_of_an_earlier_version_is_followed_by_another_file_at_the_next_start(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    path = tmp_path / "journal.jsonl"
    run(path, [0], full=10**9, steps=8)
    assert list(content(tmp_path)) == ["journal.jsonl"]
    run(path, [8])
    assert next(iter(content(tmp_path))) == f"{OLDER}/until-0000008.jsonl"
    assert path.read_bytes() == whole["journal.jsonl"]
    assert of_journal(path).problems == ()


def test_opening_reads_the_newest_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run(path, [0])
    before = Journal(path)
    for older in (tmp_path / OLDER).iterdir():
        older.write_bytes(b"no record\n")
    after = Journal(path)
    assert (after.issued_count, after.outstanding) == (before.issued_count, before.outstanding)
    after.check(stream().uids)


def test_prompts_that_wait_are_known_in_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run(path, [0], steps=8)
    (first, *_) = [record for record, _ in read(path)]
    (ahead,) = first.waiting
    assert (first.event, ahead[0]) == ("continued", first.step)
    assert Journal(path).waiting[first.step] == ahead[1]


def test_all_files_are_audited(tmp_path: Path, whole: dict[str, bytes]) -> None:
    path = tmp_path / "journal.jsonl"
    run(path, [0])
    facts = of_journal(path)
    assert isinstance(facts, JournalFacts)
    assert (facts.steps, facts.consumed, facts.committed, facts.problems) == (
        STEPS,
        STEPS * PER_STEP,
        STEPS * PER_STEP,
        (),
    )
    assert [step for step, _ in facts.commits] == list(range(2, STEPS + 1, 2))
    lost = files(path)[1]
    lost.unlink()
    (problem, *_) = of_journal(path).problems
    assert problem.startswith(f"{files(path)[1]}:1: continues with other prompts than those before step")


def test_a_file_that_is_lost_cannot_be_gone_back_to(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    run(path, [0])
    for older in (tmp_path / OLDER).iterdir():
        older.unlink()
    with pytest.raises(JournalError, match=r"journal\.jsonl: begins after step \d+, and journal/ has no file with 2"):
        Journal(path).rewind(2, name_of(2))


def test_a_fresh_start_sets_all_files_aside(tmp_path: Path) -> None:
    run(tmp_path / "journal.jsonl", [0])
    before = content(tmp_path)
    begin(tmp_path, Wish(resume="Fresh"), "another")
    assert content(tmp_path / "set-aside") == before
    assert files(tmp_path / "journal.jsonl") == []


def test_a_resume_from_a_named_step_keeps_a_copy_of_all_files(tmp_path: Path) -> None:
    for step in (2, 4):
        checkpoints(tmp_path / "checkpoints").save(step)
    run(tmp_path / "journal.jsonl", [0])
    before = content(tmp_path)
    begin(tmp_path, Wish(resume_step=2), "another")
    assert content(tmp_path / "set-aside") == before
