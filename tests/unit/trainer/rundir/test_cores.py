"""Core dumps of GPUs have a place, and are named where an attempt ends."""

import errno
import logging
import os
from pathlib import Path

from rljob_trainer.rundir.cores import NewCores, cores, make_place


def dump(directory: Path, name: str, at: float) -> Path:
    path = directory / "cores" / name
    path.touch()
    os.utime(path, (at, at))
    return path


def test_a_run_without_core_dumps_has_none(tmp_path: Path):
    assert cores(tmp_path) == ()
    make_place(tmp_path)
    make_place(tmp_path)
    assert cores(tmp_path) == ()


def test_core_dumps_are_listed_oldest_first_and_nothing_else_is(tmp_path: Path):
    make_place(tmp_path)
    second, first = dump(tmp_path, "a-1.core", 20), dump(tmp_path, "b-2.core", 10)
    dump(tmp_path, "note.txt", 5)
    assert cores(tmp_path) == (first, second)


def test_an_attempt_logs_the_core_dumps_that_it_adds(tmp_path: Path, caplog):
    make_place(tmp_path)
    dump(tmp_path, "node-1.core", 10)
    found = NewCores(tmp_path)
    new = dump(tmp_path, "node-2.core", 20)
    with caplog.at_level(logging.ERROR):
        found.report()
    (message,) = caplog.messages
    assert message == f"action=keep_core file={new} open=\"cuda-gdb -ex 'target cudacore {new}'\""


def test_a_volume_that_does_not_list_them_ends_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda self, _: (_ for _ in ()).throw(OSError(errno.ESTALE, "stale")))
    NewCores(tmp_path).report()
