"""What an attempt has added to the logs of its run, and the failure that they show."""

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
