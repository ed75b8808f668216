"""One process of a node reads a model's configuration from the shared file system, and the others its copy."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import AutoConfig

from rljob_trainer.rundir import retries
from rljob_trainer.rundir.node_copy import node_copy, place_of_copies

WHOLE = '{"model_type": "llama", "hidden_size": 64}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "shared" / "config.json"
    path.parent.mkdir()
    path.write_text(WHOLE)
    return path


class Reader:
    """A slow shared file system that counts."""

    def __init__(self) -> None:
        self.reads = 0
        self._lock = threading.Lock()

    def __call__(self, path: Path) -> bytes:
        with self._lock:
            self.reads += 1
        threading.Event().wait(0.05)
        return path.read_bytes()


def test_of_many_that_come_at_once_one_reads_and_all_have_the_same_copy(tmp_path: Path, config: Path):
    read = Reader()
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: node_copy(config, tmp_path / "node", read), range(8)))
    assert (len(found), read.reads) == (1, 1)
    (copy,) = found
    assert copy.parent == tmp_path / "node"
    assert AutoConfig.from_pretrained(copy).hidden_size == 64


def test_processes_wait_for_the_one_that_reads(tmp_path: Path, config: Path):
    code = (
        "import os, sys, time; from pathlib import Path; from rljob_trainer.rundir.node_copy import node_copy\n"
        "reads = Path(sys.argv[3]); here = reads.parent / 'here'\n"
        "def read(path):\n"
        "    open(reads, 'a').write('x')\n"
        "    while len(list(here.iterdir())) < 3: time.sleep(0.01)\n"  # until the others want the file, too
        "    return path.read_bytes()\n"
        "(here / str(os.getpid())).touch()\n"
        "print(node_copy(Path(sys.argv[1]), Path(sys.argv[2]), read))"
    )
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-c", code, str(config), str(tmp_path / "node"), str(tmp_path / "reads")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=60)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert (len(said), (tmp_path / "reads").read_text()) == (1, "x")


def test_a_file_that_has_changed_is_read_again(tmp_path: Path, config: Path):
    first = node_copy(config, tmp_path / "node")
    config.write_text(WHOLE.replace("64", "128"))
    second = node_copy(config, tmp_path / "node")
    assert [AutoConfig.from_pretrained(copy).hidden_size for copy in (first, second)] == [64, 128]


def test_half_a_file_is_not_copied(tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retries, "PAUSES_S", (0.0,))
    written = [WHOLE[:20].encode(), WHOLE.encode()]
    copy = node_copy(config, tmp_path / "node", lambda _: written.pop(0))
    assert (copy / "config.json").read_text() == WHOLE
    config.write_text(WHOLE[:30])
    with pytest.raises(ValueError, match=r"delimiter|Unterminated|Expecting"):
        node_copy(config, tmp_path / "node")
    assert sorted(path.name for path in (tmp_path / "node").iterdir()) == sorted((copy.name, "lock"))


def test_a_rank_that_died_while_it_wrote_leaves_nothing_that_others_would_read(tmp_path: Path, config: Path):
    copy = node_copy(config, tmp_path / "node")
    copy.rename(copy.with_suffix(".draft"))
    assert (node_copy(config, tmp_path / "node") / "config.json").read_text() == WHOLE


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path, config: Path, mode: int):
    place = tmp_path / "node"
    place.mkdir()
    place.chmod(mode)
    assert node_copy(config, place) == config.parent
    assert list(place.iterdir()) == []


def test_a_link_and_a_place_that_cannot_be_made_are_not_used(tmp_path: Path, config: Path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert node_copy(config, tmp_path / "link") == config.parent
    assert node_copy(config, tmp_path / "no" / "such") == config.parent


def test_a_configuration_that_is_not_there_is_an_error_at_once(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        node_copy(tmp_path / "config.json", tmp_path / "node")


def test_the_place_is_of_this_user():
    assert place_of_copies().name == f"rljob-configs-{os.getuid()}"
