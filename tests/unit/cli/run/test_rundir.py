"""The directory of a run: its files, the number of the next attempt, and the lock of its one supervisor."""

import os
from pathlib import Path

import pytest

from rljob_api.reading.manifest import parse
from rljob_cli.run.rundir import RunDirectory, RunDirectoryError, RunLockedError, locked, rundir
from support.operator.operator_world import raw_job


def directory(path: Path) -> RunDirectory:
    return rundir(parse(raw_job(checkpoint={"directory": str(path)})))


def test_a_run_s_directory_is_made_where_the_manifest_says(tmp_path: Path):
    found = directory(tmp_path / "deep" / "run")
    assert found.path == tmp_path / "deep" / "run"
    assert found.supervisor_log.parent.is_dir()


def test_without_a_directory_in_the_manifest_it_is_named_after_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert rundir(parse(raw_job("sums"))).path == tmp_path / "runs" / "sums"


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"file/run is not there: .*/file is a file, not a directory"):
        directory(tmp_path / "file" / "run")


def test_attempts_are_counted_over_all_runs_in_a_directory(tmp_path: Path):
    run = directory(tmp_path)
    assert run.next_attempt() == 1
    for name in ("driver-attempt-2.log", "driver-attempt-10.log", "driver-attempt-x.log", "engine-11.log"):
        (tmp_path / "logs" / name).touch()
    assert run.next_attempt() == 11
    assert run.log(10).exists()


def test_a_second_supervisor_is_refused_with_the_pid_of_the_first(tmp_path: Path):
    run = directory(tmp_path)
    with locked(run), pytest.raises(RunLockedError, match=f"already in use by `rljob run` with pid {os.getpid()}"):
        locked(run).__enter__()


def test_a_directory_is_free_again_after_its_supervisor(tmp_path: Path):
    run = directory(tmp_path)
    with locked(run):
        pass
    with locked(run) as descriptor:
        assert os.fstat(descriptor).st_size == len(str(os.getpid()))
