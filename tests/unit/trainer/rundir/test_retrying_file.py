"""A file that a library reads goes on where it was when the volume fails."""

import errno
import io
import os
from pathlib import Path

import pytest

from rljob_trainer.rundir.retries import Patience, StorageError
from rljob_trainer.rundir.retrying_file import retrying_file
from support.trainer.failing_calls import failing, patient

CONTENT = bytes(range(256)) * 20_000
"""more than is read ahead"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "shard").write_bytes(CONTENT)
    return tmp_path / "shard"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN])
@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
def test_an_error_that_passes_loses_and_repeats_no_byte(path, monkeypatch, call, number):
    failing(monkeypatch, call, number, number)
    with retrying_file(path, patient()) as file:
        assert file.read() == CONTENT


def test_a_stale_handle_is_opened_again_where_it_was(path, monkeypatch):
    with retrying_file(path, patient()) as file:
        first = file.read(3_000_000)
        opened = failing(monkeypatch, "open")
        failing(monkeypatch, "preadv", errno.ESTALE)
        assert first + file.read() == CONTENT
    assert len(opened) == 1


@pytest.mark.parametrize(("offset", "whence"), [(7, io.SEEK_SET), (3_000_000, io.SEEK_SET), (-9, io.SEEK_END)])
def test_it_seeks_as_any_file(path, offset, whence):
    with retrying_file(path, patient()) as file, path.open("rb") as plain:
        file.read(5), plain.read(5)
        assert (file.seek(offset, whence), file.tell()) == (plain.seek(offset, whence), plain.tell())
        assert file.read(20) == plain.read(20)
        assert file.seek(-4, io.SEEK_CUR) == plain.seek(-4, io.SEEK_CUR)
        assert file.read(2) == plain.read(2)


def test_a_volume_that_stays_away_is_no_fault_of_the_file(path, monkeypatch):
    failing(monkeypatch, "preadv", *[errno.EIO] * 1000)
    with retrying_file(path, patient()) as file, pytest.raises(StorageError, match=r"shard: .*tried again for"):
        file.read(1)


def test_a_file_that_is_not_there_is_not_waited_for(tmp_path):
    with pytest.raises(FileNotFoundError):
        retrying_file(tmp_path / "shard", Patience(pause=lambda _: pytest.fail("waited")))


def handles(path: Path) -> int:
    """Return how often this process has the file open."""
    opened = (os.path.realpath(each) for each in Path("/proc/self/fd").iterdir())
    return sum(each == os.path.realpath(path) for each in opened)


def test_no_handle_is_left_open(path, monkeypatch):
    failing(monkeypatch, "preadv", errno.ESTALE, errno.ESTALE)
    with retrying_file(path, patient()) as file:
        file.read(1)
        assert handles(path) == 1
    assert handles(path) == 0
