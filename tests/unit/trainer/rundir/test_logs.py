"""What an attempt has added to the logs of its run, and the failure that they show."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from rljob_trainer.rundir import logs
from rljob_trainer.rundir.logs import AttemptLogs

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.55 GiB. GPU 0 has a total capacity of 79 GiB\n"
NAN = "RuntimeError: Unexpected result nan (message='loss is NaN')\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def write(run: Path, name: str, text: str) -> None:
    with (run / "logs" / name).open("a") as file:
        file.write(text)


def test_what_an_earlier_attempt_wrote_ended_no_later_one(run: Path):
    write(run, "engine-0.log", OOM)
    attempt = AttemptLogs(run)
    assert attempt.known_failure() is None
    write(run, "engine-0.log", NAN)
    assert attempt.known_failure().code == "NonFiniteStep"
    assert attempt.known_failure().evidence.startswith("engine-0.log: RuntimeError")


def test_what_two_finished_steps_followed_did_not_end_the_attempt(run: Path):
    attempt = AttemptLogs(run)
    write(run, "engine-0.log", OOM)
    attempt.step_finished()
    assert attempt.known_failure().code == "TrainOutOfMemory"  # it may have come while the step ended
    attempt.step_finished()
    assert attempt.known_failure() is None
    write(run, "engine-0.log", NAN)
    attempt.step_finished()
    assert attempt.known_failure().code == "NonFiniteStep"


def test_a_directory_that_is_made_later_is_read(tmp_path: Path):
    attempt = AttemptLogs(tmp_path / "new")
    (tmp_path / "new" / "logs").mkdir(parents=True)
    write(tmp_path / "new", "driver-attempt-1.log", OOM)
    assert attempt.known_failure().code == "TrainOutOfMemory"


def test_a_directory_that_is_gone_shows_nothing(run: Path, tmp_path: Path):
    attempt = AttemptLogs(run)
    (run / "logs").rmdir()
    assert attempt.known_failure() is None


def test_only_the_end_of_a_huge_log_is_read(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "MOST_READ", 200)
    attempt = AttemptLogs(run)
    write(run, "driver-attempt-1.log", OOM + "fine\n" * 100)
    assert attempt.known_failure() is None
    write(run, "driver-attempt-1.log", NAN)
    assert attempt.known_failure().code == "NonFiniteStep"


def test_files_that_are_no_logs_are_not_read(run: Path):
    attempt = AttemptLogs(run)
    write(run, "profile.bin", OOM)
    assert attempt.known_failure() is None


def test_a_log_that_cannot_be_read_ends_nothing(run: Path, monkeypatch: pytest.MonkeyPatch):
    attempt = AttemptLogs(run)
    write(run, "driver-attempt-1.log", OOM)
    monkeypatch.setattr(AttemptLogs, "_added", lambda *_: (_ for _ in ()).throw(OSError("stale handle")))
    assert attempt.known_failure() is None


def test_logs_that_take_too_long_are_not_searched_to_their_end(run: Path):
    text = OOM + NAN + "fine\n" * 20_000
    found = {}
    for name, step_s in (("in time", 0.0), ("late", 2 * logs.LONGEST_S)):
        attempt = AttemptLogs(run / name, itertools.count(0.0, step_s).__next__)
        (run / name / "logs").mkdir(parents=True)
        write(run / name, "engine-0.log", text)
        found[name] = attempt.known_failure()
    assert found["in time"].code == "TrainOutOfMemory"
    assert found["late"] is None or found["late"].code != "TrainOutOfMemory"


def test_of_many_logs_those_that_changed_last_are_read(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "MOST_FILES", 3)
    attempt = AttemptLogs(run)
    for number in range(10):
        path = run / "logs" / f"engine-{9 - number}.log"
        path.write_text("x\n")
        os.utime(path, (2e9 + number, 2e9 + number))
    assert [path.name for path in attempt._files()] == ["engine-0.log", "engine-1.log", "engine-2.log"]


def test_a_volume_that_does_not_list_the_logs_ends_no_step(run: Path, monkeypatch: pytest.MonkeyPatch):
    attempt = AttemptLogs(run)
    monkeypatch.setattr(Path, "rglob", lambda self, _: (_ for _ in ()).throw(OSError(errno.ESTALE, "stale")))
    attempt.step_finished()
    assert AttemptLogs(run).known_failure() is None
