"""Clusters of sessions that were killed are found and removed; those of living sessions are left alone."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from local_cluster import home
from local_cluster.errors import ClusterError
from local_cluster.processes import find, start, wait_ready

SESSION = """
import sys, time
from pathlib import Path
from local_cluster.home import owned_directory
from local_cluster.processes import start
with owned_directory(Path(sys.argv[1])) as directory:
    start("sleep", ["sleep", "600"], directory, lambda: True)
    print(directory, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_session_left_is_removed(tmp_path: Path) -> None:
    directory = _killed_session(tmp_path)
    assert [process.name() for process in find(directory)] == ["sleep"]
    assert home.remove_orphans(tmp_path) == [directory]
    assert find(directory) == []
    assert not directory.exists()


def test_sessions_that_start_at_once_do_not_remove_the_same_leftover(tmp_path: Path) -> None:
    directory = _killed_session(tmp_path)
    for number in range(500):
        (directory / str(number)).touch()
    together = threading.Barrier(4)

    def start_session(_: int) -> list[Path]:
        together.wait()
        return home.remove_orphans(tmp_path)

    with ThreadPoolExecutor(4) as sessions:
        assert list(chain.from_iterable(sessions.map(start_session, range(4)))) == [directory]


def test_a_disk_without_room_is_refused_with_what_there_is(tmp_path: Path) -> None:
    home.require_room(tmp_path, 0)
    with pytest.raises(ClusterError, match=rf"{tmp_path.parent}: \d+ GiB are free, a node needs 1e\+06; TMPDIR names"):
        home.require_room(tmp_path, 1e6)


def test_the_cluster_of_a_living_session_is_left_alone_and_goes_with_it(tmp_path: Path) -> None:
    with home.owned_directory(tmp_path) as directory:
        start("sleep", ["sleep", "600"], directory, lambda: True)
        assert home.remove_orphans(tmp_path) == []
        assert [process.name() for process in find(directory)] == ["sleep"]
    assert find(directory) == []
    assert not directory.exists()


def test_children_of_a_process_are_stopped_with_it(tmp_path: Path) -> None:
    start("shell", ["sh", "-c", "setsid sleep 600 & touch started; wait"], tmp_path, lambda: True)
    wait_ready(start("wait", ["sleep", "600"], tmp_path, (tmp_path / "started").exists))
    # Their names would be a race: a child is called sh until it has become what it was started for.
    assert len(home.remove(tmp_path)) == 3


def test_a_process_that_ends_early_is_an_error_that_shows_its_log(tmp_path: Path) -> None:
    dying = start("etcd", ["sh", "-c", "echo address already in use; exit 4"], tmp_path, lambda: False)
    with pytest.raises(ClusterError, match=r"(?s)etcd ended with 4 before it was ready.*address already in use"):
        wait_ready(dying)


def test_a_process_that_is_late_is_an_error(tmp_path: Path) -> None:
    late = start("etcd", ["sleep", "600"], tmp_path, lambda: False)
    with pytest.raises(ClusterError, match="etcd is not ready after 0 s"):
        wait_ready(late, deadline_s=0.1)
    home.remove(tmp_path)


def _killed_session(clusters: Path) -> Path:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SESSION, str(clusters)]
    session = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert session.stdout
    directory = Path(session.stdout.readline().strip())
    session.kill()
    session.communicate()
    return directory
