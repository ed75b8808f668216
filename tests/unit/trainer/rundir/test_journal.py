"""The journal: a run killed at any byte and resumed leaves the same file as one that was left alone."""

import errno
import os
from itertools import count, islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.rundir.journal import Journal, JournalError, Record, audited, recorded
from rljob_trainer.rundir.retries import Patience, StorageError
from rljob_trainer.samples import Prompt
from support.trainer.power_cut import Disk

ROWS, PER_STEP, STEPS, SAVE_EVERY = 4, 3, 5, 2
REPEATED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""every example overwrites the files of the one before"""


def stream() -> PromptStream:
    return PromptStream(Held([Prompt(str(row), "", "", (), "", {}) for row in range(ROWS)]), seed=0, shuffle=True)


def name(step: int) -> str:
    return f"iter_{step:07d}"


def run(path: Path, resume_from: int = 0, until: int = STEPS) -> bytes:
    """Do what the loop does to a journal: resume from the checkpoint after so many steps, go on to the end."""
    journal, issuing = Journal(path), stream()
    journal.rewind(resume_from, name(resume_from))
    issuing.seek(issuing.position_after(journal.issued_count))
    for step in range(resume_from, until):
        journal.issued(step, [prompt.uid for prompt in issuing.draw(PER_STEP)])
        journal.consumed(step)
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == until:
            journal.committed(step + 1, name(step + 1))
    journal.check(stream().uids)
    journal.close()
    return path.read_bytes()


def saved_steps(content: bytes, saved_before_noted: bool) -> list[int]:
    """Return the steps of the checkpoints that exist when the journal has this content.

    A checkpoint is written just before it is noted, or is completed just after.
    """
    complete = content[: content.rfind(b"\n") + 1]
    noted = [0, *(step for step in range(1, STEPS + 1) if f'"checkpoint":"{name(step)}"'.encode() in complete)]
    consumed = complete.count(b'"consumed"')
    due = saved_before_noted and (consumed % SAVE_EVERY == 0 or consumed == STEPS)
    return sorted({*noted, consumed}) if due else noted


@settings(REPEATED, max_examples=60)
@given(cut=st.floats(0, 1), saved_before_noted=st.booleans())
def test_a_killed_and_resumed_run_leaves_the_same_bytes(tmp_path, cut, saved_before_noted):
    whole = run(tmp_path / "whole.jsonl", until=STEPS)
    killed = whole[: round(cut * len(whole))]
    (tmp_path / "killed.jsonl").write_bytes(killed)
    resume_from = saved_steps(killed, saved_before_noted)[-1]
    assert run(tmp_path / "killed.jsonl", resume_from) == whole


@settings(REPEATED, max_examples=20)
@given(cuts=st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_a_run_killed_many_times_leaves_the_same_bytes(tmp_path, cuts):
    whole = run(tmp_path / "whole.jsonl")
    path = tmp_path / "killed.jsonl"
    path.write_bytes(b"")
    for cut in cuts:
        content = run(path, saved_steps(path.read_bytes(), False)[-1])
        path.write_bytes(content[: round(cut * len(content))])
    assert run(path, saved_steps(path.read_bytes(), False)[-1]) == whole


def test_resuming_from_an_older_checkpoint_forgets_the_newer_one(tmp_path):
    whole = run(tmp_path / "journal.jsonl")
    assert run(tmp_path / "journal.jsonl", resume_from=2) == whole


def test_records_are_lines_without_times(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.issued(0, ["0:4", "0:1"])
    journal.consumed(0)
    journal.committed(1, "iter_0000001")
    assert (tmp_path / "journal.jsonl").read_text().splitlines() == [
        '{"event":"issued","step":0,"prompts":["0:4","0:1"]}',
        '{"event":"consumed","step":0,"prompts":["0:4","0:1"]}',
        '{"event":"committed","step":1,"checkpoint":"iter_0000001"}',
    ]


def test_reopening_finds_the_records(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.issued(0, ["0:4", "0:1"])
    assert Journal(tmp_path / "journal.jsonl").records == journal.records


def test_a_torn_last_line_is_removed_when_the_journal_is_opened(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path).issued(0, ["0:4"])
    complete = path.read_bytes()
    path.write_bytes(complete + b'{"event":"consumed","st')
    assert len(Journal(path).records) == 1
    assert path.read_bytes() == complete


def test_damage_before_the_last_line_is_reported_with_its_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event":"issued","step":0,"prompts":["0:4"]}\n{"event":"consumed","st\n')
    with pytest.raises(JournalError, match=r"journal\.jsonl:2: not a journal record"):
        Journal(path)


def test_a_line_written_by_another_program_is_reported(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "issued", "step": 0, "prompts": ["0:4"]}\n')
    with pytest.raises(JournalError, match=r"journal\.jsonl:1: not a journal record"):
        Journal(path)


def test_prompts_issued_and_not_consumed_are_outstanding(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.issued(0, ["0:4", "0:1"])
    journal.issued(1, ["0:0", "0:2"])
    journal.consumed(0, ["0:4", "0:0"])
    assert journal.outstanding == ("0:1", "0:2")
    assert journal.issued_count == 4


def test_noting_a_commit_twice_changes_nothing(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.issued(0, ["0:4"])
    journal.consumed(0)
    journal.committed(1, "iter_0000001")
    journal.committed(1, "iter_0000001")
    assert len(journal.records) == 3


def test_a_journal_that_ends_before_the_checkpoint_is_refused(tmp_path):
    run(tmp_path / "journal.jsonl", until=4)
    with pytest.raises(JournalError, match=r"ends before step 5, which checkpoint iter_0000006 holds"):
        Journal(tmp_path / "journal.jsonl").rewind(6, "iter_0000006")


def test_consuming_a_step_that_was_not_issued_is_refused(tmp_path):
    with pytest.raises(JournalError, match=r"step 2 is recorded as consumed, but none of its prompts as issued"):
        Journal(tmp_path / "journal.jsonl").consumed(2)


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        ([("issued", 0, [1])], r":1: issued prompt \S+ where \S+ was next"),
        ([("issued", 0, [0]), ("issued", 1, [0])], r":2: issued prompt \S+ where \S+ was next"),
        ([("issued", 0, [0]), ("issued", 1, [2])], r":2: issued prompt \S+ where \S+ was next"),
        ([("issued", 0, [0]), ("consumed", 0, [0, 0])], r":2: consumed prompt \S+, which was not issued or was"),
        ([("issued", 0, [0]), ("consumed", 0, [1])], r":2: consumed prompt \S+, which was not issued or was"),
        ([("issued", 0, [0]), ("consumed", 1, [0])], r":2: consumed step 1 where 0 was next"),
    ],
)
def test_a_skipped_or_repeated_prompt_is_noticed(tmp_path, faulty, said):
    journal, uids = Journal(tmp_path / "journal.jsonl"), list(islice(stream().uids(), 5))
    writers = {"issued": journal.issued, "consumed": journal.consumed}
    for event, step, prompts in faulty:
        writers[event](step, [uids[prompt] for prompt in prompts])
    with pytest.raises(JournalError, match=said):
        journal.check(stream().uids)


def test_a_commit_that_covers_steps_not_consumed_is_noticed(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.committed(1, "iter_0000001")
    with pytest.raises(JournalError, match=r":1: commit of step 1 after 0 steps"):
        journal.check(stream().uids)


def test_a_power_cut_after_a_call_takes_nothing_from_the_journal(tmp_path, monkeypatch):
    disk = Disk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    journal = Journal(tmp_path / "run" / "journal.jsonl")
    calls = [
        lambda: journal.issued(0, ["0:4"]),
        lambda: journal.consumed(0),
        lambda: journal.committed(1, "iter_0000001"),
        lambda: journal.rewind(0, ""),
    ]
    for number, call in enumerate(calls):
        call()
        after = tmp_path / f"after-{number}"
        disk.restore(tmp_path / "run", after)
        assert (after / "journal.jsonl").read_bytes() == (tmp_path / "run" / "journal.jsonl").read_bytes()


def test_a_torn_line_stays_removed_after_a_power_cut(tmp_path, monkeypatch):
    path, disk = tmp_path / "run" / "journal.jsonl", Disk()
    Journal(path).issued(0, ["0:4"])
    complete = path.read_bytes()
    path.write_bytes(complete + b'{"event"')
    monkeypatch.setattr(os, "fsync", disk.fsync)
    Journal(path)
    disk.restore(tmp_path / "run", tmp_path / "after")
    assert (tmp_path / "after" / "journal.jsonl").read_bytes() == complete


def test_a_line_that_the_disk_takes_in_part_is_reported_and_no_record(tmp_path, monkeypatch):
    journal, write = Journal(tmp_path / "journal.jsonl"), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:7]))
    with pytest.raises(StorageError, match=r"journal\.jsonl: \[Errno 28\] wrote 7 of 46 bytes; is the disk full\?"):
        journal.issued(0, ["0:4"])
    assert journal.records == ()


def test_a_commit_that_was_not_noted_is_noted_where_its_step_ended(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    for step in (0, 1):
        journal.issued(step, [f"0:{step}"])
    journal.consumed(0)
    journal.issued(2, ["0:2"])
    journal.rewind(1, "iter_0000001")
    assert [(record.event, record.step) for record in Journal(tmp_path / "journal.jsonl").records] == [
        ("issued", 0),
        ("issued", 1),
        ("consumed", 0),
        ("committed", 1),
    ]


def test_where_no_order_is_given_each_prompt_is_issued_once():
    records = [Record("issued", 0, ("0:4",)), Record("consumed", 0, ("0:4",)), Record("issued", 1, ("0:4",))]
    assert list(audited(records[:2])) == []
    assert list(audited(records)) == ["3: issued prompt 0:4, which was issued before"]


def test_a_journal_makes_its_directory_and_a_file_that_is_no_program(tmp_path):
    path = tmp_path / "runs" / "first" / "journal.jsonl"
    Journal(path).close()
    Journal(path).close()
    assert path.stat().st_mode & 0o111 == 0


@pytest.mark.parametrize("method", ["write", "fsync", "ftruncate"])
def test_a_passing_error_of_the_volume_leaves_the_journal_exact(tmp_path, monkeypatch, method):
    journal = Journal(tmp_path / "journal.jsonl", patience=Patience(pause=lambda seconds: None))
    journal.rewind(0, "")
    journal.issued(0, ["0:1", "0:2"])
    real, calls = getattr(os, method), count()

    def stale_at_first(descriptor, *rest):
        if next(calls) % 2 == 0:
            if method == "write":
                real(descriptor, rest[0][:7])
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(descriptor, *rest)

    monkeypatch.setattr(os, method, stale_at_first)
    journal.consumed(0)
    journal.rewind(0, "")
    journal.issued(0, ["0:3"])
    journal.close()
    assert recorded(tmp_path / "journal.jsonl") == ([Record("issued", 0, ("0:3",))], 0)
