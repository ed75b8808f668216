"""Each process of pytest-xdist gets a /dev/shm of its own: tests look there for what their runs leave behind."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api.exits import Exit
from support.trainer.whole_run import Finish, WholeRun

NEW_MOUNT_NAMESPACE = 0x00020000  # CLONE_NEWNS
RECURSIVELY_PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
LIBC = ctypes.CDLL(None, use_errno=True)


def pytest_configure(config: pytest.Config) -> None:
    """Runs in each process that runs tests, before it has started anything; needs root, as `make` has looked."""
    if hasattr(config, "workerinput"):
        succeed("unshare", LIBC.unshare(NEW_MOUNT_NAMESPACE))
        succeed("mount --make-rprivate /", LIBC.mount(b"none", b"/", None, RECURSIVELY_PRIVATE, None))
        succeed("mount /dev/shm", LIBC.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None))


def succeed(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


@pytest.fixture
def finish(tmp_path: Path) -> Iterator[Finish]:
    """Takes runs to their end, each in a directory of its own, and ends what a failed test has left."""
    runs: list[WholeRun] = []

    def finished(name: str, model: Path, **sections: Any) -> WholeRun:
        directory = tmp_path / name
        directory.mkdir()
        run = WholeRun(model, directory, **sections)
        runs.append(run)
        run.start()
        assert run.end(420) == Exit.OK, run.output
        assert run.left_behind() == []
        return run

    yield finished
    for run in runs:
        run.stop()
