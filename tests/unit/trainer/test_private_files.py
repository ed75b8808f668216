"""What a run writes into its directory never goes through a link that somebody else has left there."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from rljob_api.sections import Checkpoint
from rljob_trainer import private_files
from rljob_trainer.private_files import AppendingHandler, appended, changed, created, private_directory, write_whole
from rljob_trainer.processes.file_lock import locked
from rljob_trainer.processes.kept_process import KeptProcess
from rljob_trainer.reporting.events import EventLog, rewind
from rljob_trainer.reporting.weights_and_biases import ID_FILE, run_id
from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.fence import Fence, Name
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.rundir.resume import begin
from rljob_trainer.rundir.rollout_files import Dump

SECRET = "ssh-ed25519 AAAA"


def opened_lock(path: Path) -> None:
    with locked(path):
        pass


def logged(path: Path) -> None:
    handler = AppendingHandler(path)
    handler.emit(logging.makeLogRecord({"msg": "a line"}))
    handler.close()


APPENDING: dict[str, Callable[[Path], object]] = {
    "appended": lambda path: appended(path).close(),
    "changed": lambda path: changed(path).close(),
    "created": lambda path: created(path).close(),
    "events": EventLog,
    "journal": Journal,
    "lock": opened_lock,
    "log": logged,
}


@pytest.mark.parametrize("open_it", APPENDING.values(), ids=APPENDING)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_that_is_a_link_is_not_opened(tmp_path: Path, open_it: Callable[[Path], object], is_there: bool):
    victim, link = tmp_path / "authorized_keys", tmp_path / "run" / "file"
    link.parent.mkdir()
    link.symlink_to(victim)
    if is_there:
        victim.write_text(SECRET)
    with pytest.raises(OSError, match=r"symbolic links|File exists|cannot be"):
        open_it(link)
    assert (victim.read_text() if victim.exists() else None) == (SECRET if is_there else None)


REPLACING: dict[str, tuple[str, Callable[[Path], object]]] = {
    "driver.json": ("driver.json", lambda run: Fence(run, Name("a", 1)).claim()),
    "a record": ("record.json", lambda run: write_atomically(run / "record.json", b"{}")),
    "the run's id": (ID_FILE, run_id),
    "a report": ("report.html", lambda run: write_whole(run / "report.html", b"<html>")),
}


@pytest.mark.parametrize(("name", "write"), REPLACING.values(), ids=REPLACING)
def test_a_draft_has_a_name_that_nobody_can_foresee(tmp_path: Path, name: str, write: Callable[[Path], object]):
    victim, run = tmp_path / "authorized_keys", tmp_path / "run"
    run.mkdir()
    victim.write_text(SECRET)
    for each in (".draft", ".tmp"):
        (run / name).with_suffix(each).symlink_to(victim)
    write(run)
    assert victim.read_text() == SECRET
    assert not (run / name).is_symlink()


def test_a_file_that_was_a_link_is_replaced_by_a_file(tmp_path: Path):
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text(SECRET)
    link.symlink_to(victim)
    write_whole(link, b"new")
    assert (victim.read_text(), link.read_text(), link.is_symlink()) == (SECRET, "new", False)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "manifest.yaml"
    path.write_text("old")
    write_whole(path, b"new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("manifest.yaml", "new")]


def test_a_draft_that_cannot_be_finished_is_not_left(tmp_path: Path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "taken", b"x")
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


def test_a_program_that_is_kept_writes_its_log_through_no_link(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text(SECRET)
    (tmp_path / "engine.log").symlink_to(victim)
    with pytest.raises(Exception, match=r"."):
        KeptProcess(["echo", "hello"], {}, tmp_path / "engine.log")
    assert victim.read_text() == SECRET


def test_a_run_directory_is_its_owner_s_alone_and_an_older_one_stays_as_it_is(tmp_path: Path):
    for name, before in {"new/run": None, "old": 0o755}.items():
        if before is not None:
            (tmp_path / name).mkdir(mode=before)
        private_directory(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == (before or 0o700)


def kept_program(path: Path) -> None:
    assert KeptProcess(["echo", "hello"], {}, path).wait(60)


def rewound(path: Path) -> None:
    path.write_text("")
    rewind(path, 0)


PRIVATE: dict[str, Callable[[Path], object]] = {
    **APPENDING,
    "a file that is replaced": lambda path: write_whole(path, b"x"),
    "events after a resume": rewound,
    "rollouts": lambda path: Dump(path.parent).write(1, [[]], {}).replace(path),
    "the log of a program": kept_program,
}


@pytest.mark.parametrize("write", PRIVATE.values(), ids=PRIVATE)
def test_what_a_run_says_is_its_owner_s_alone_in_a_directory_that_others_may_read(
    tmp_path: Path, write: Callable[[Path], object]
):
    tmp_path.chmod(0o755)
    write(tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_weights_and_what_describes_them_can_be_shared(tmp_path: Path):
    write_atomically(tmp_path / "manifest.json", b"{}")
    changed(tmp_path / "weights.bin", private_files.READABLE).close()
    (tmp_path / "as the umask says").touch()
    assert len({each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}) == 1


def test_the_next_attempt_removes_drafts_that_a_crash_has_left(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    left = [private_files.draft_of(tmp_path / name) for name in ("driver.json", "checkpoints/latest")]
    for each in left:
        each.touch()
    begin(tmp_path, Checkpoint(), "a")
    assert not any(each.exists() for each in left)


def test_a_record_that_is_rewound_is_no_link_any_more(tmp_path: Path):
    victim = tmp_path / "victim"
    victim.write_text("")
    (tmp_path / "events.jsonl").symlink_to(victim)
    rewind(tmp_path / "events.jsonl", 0)
    assert not (tmp_path / "events.jsonl").is_symlink()
    assert victim.read_text() == ""
