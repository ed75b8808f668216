"""A driver that was left behind writes nothing any more."""

import errno
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_trainer.rundir.fence import Fence, FencedError, Name
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.retries import Patience
from support.waiting import eventually


def fence(directory: Path, attempt: int, origin: str = "7f3a") -> Fence:
    made = Fence(directory, Name(origin, attempt))
    made.claim()
    return made


def test_the_newest_attempt_may_write_and_those_before_it_learn_who_does(tmp_path):
    first = fence(tmp_path, 1)
    first.check()
    fence(tmp_path, 2).check()
    with pytest.raises(FencedError, match="attempt 2 of 7f3a has taken it over from attempt 1"):
        first.check()


def test_an_attempt_that_starts_after_its_successor_is_refused(tmp_path):
    second = fence(tmp_path, 2)
    with pytest.raises(FencedError, match=r"attempt 1 of .* comes too late: attempt 2"):
        fence(tmp_path, 1)
    second.check()


@pytest.mark.parametrize(("before", "after"), [("7f3a", "8c2b"), ("7f3a", ""), ("", "7f3a"), ("", "")])
def test_another_job_goes_on_in_a_directory_whatever_attempt_it_is(tmp_path, before, after):
    old = fence(tmp_path, 3, before)
    fence(tmp_path, 1, after).check()
    with pytest.raises(FencedError):
        old.check()


def test_the_same_attempt_of_another_job_is_another_driver(tmp_path):
    old = fence(tmp_path, 1, "7f3a")
    fence(tmp_path, 1, "8c2b").check()
    with pytest.raises(FencedError, match="attempt 1 of 8c2b has taken it over from attempt 1 of 7f3a"):
        old.check()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"7", b"\xff", b'{"origin": "7f3a"}', b'{"origin": 7, "attempt": "9"}', b"[" * 10**5]
)
def test_a_damaged_name_is_nobody_s(tmp_path, content):
    first = fence(tmp_path, 1)
    (tmp_path / "driver.json").write_bytes(content)
    with pytest.raises(FencedError, match="another run has taken it over"):
        first.check()
    fence(tmp_path, 2).check()


def test_a_driver_at_work_touches_its_file(tmp_path, monkeypatch, caplog):
    """The operator's Job that deletes run directories looks at its time."""
    monkeypatch.setattr("rljob_trainer.rundir.fence.BEAT_S", 0.001)
    mine, file = fence(tmp_path, 1), tmp_path / "driver.json"
    os.utime(file, (1, 1))
    with mine.at_work():
        eventually(lambda: file.stat().st_mtime, lambda at: at > 1, poll_s=0.01)
        file.unlink()
        eventually(lambda: caplog.text, lambda text: "action=touch" in text, poll_s=0.01)
        mine.claim()
        os.utime(file, (1, 1))
        eventually(lambda: file.stat().st_mtime, lambda at: at > 1, poll_s=0.01)
    mine.check()


DRIVERS = st.builds(Name, st.sampled_from(["", "7f3a", "8c2b"]), st.integers(0, 3))


@given(st.lists(DRIVERS, min_size=1, max_size=6))
def test_of_any_drivers_the_last_one_that_was_let_in_may_write(tmp_path_factory, drivers):
    directory = tmp_path_factory.mktemp("run")
    holder = None
    for driver in drivers:
        late = bool(holder and driver.origin and driver.origin == holder.origin and driver.attempt < holder.attempt)
        with pytest.raises(FencedError, match="comes too late") if late else nullcontext():
            Fence(directory, driver).claim()
        holder = holder if late else driver
    assert [driver for driver in drivers if may_write(directory, driver)] == [d for d in drivers if d == holder]


def may_write(directory: Path, driver: Name) -> bool:
    try:
        Fence(directory, driver).check()
    except FencedError:
        return False
    return True


@pytest.mark.parametrize(("name", "text"), [(Name("7f3a", 2), "attempt 2 of 7f3a"), (Name("", 2), "attempt 2")])
def test_a_driver_is_named_by_its_attempt_and_its_job(name, text):
    assert str(name) == text


def test_a_directory_that_was_removed_is_not_ours_any_more(tmp_path):
    mine = fence(tmp_path, 1)
    (tmp_path / "driver.json").unlink()
    with pytest.raises(FencedError, match=": another run has taken it over from attempt 1 of 7f3a"):
        mine.check()


def test_the_journal_of_a_driver_that_was_left_behind_stays_as_it_is(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", fence(tmp_path, 1).check)
    journal.issued(0, ["0:1"])
    written = (tmp_path / "journal.jsonl").read_bytes()
    fence(tmp_path, 2)
    for change in (lambda: journal.issued(1, ["0:2"]), lambda: journal.consumed(0), lambda: journal.rewind(0, "")):
        with pytest.raises(FencedError):
            change()
    assert (tmp_path / "journal.jsonl").read_bytes() == written


def test_an_error_of_the_volume_takes_the_directory_from_nobody(tmp_path, monkeypatch):
    stale = [OSError(errno.ESTALE, "Stale file handle")] * 2
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if stale:
            raise stale.pop()
        return real(path)

    mine = replace(fence(tmp_path, 1), patience=Patience(pause=lambda seconds: None))
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    mine.check()
    assert stale == []
