"""Clusters of sessions that were killed are found and removed; those of living sessions are left alone."""

import os
import subprocess
import sys
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
directory = owned_directory(Path(sys.argv[1]))
start("sleep", ["sleep", "600"], directory, lambda: True)
print(directory, flush=True)
time.sleep(600)
"""


def test_what_a_killed_session_left_is_removed(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SESSION, str(tmp_path)]
    session = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert session.stdout
    directory = Path(session.stdout.readline().strip())
    session.kill()
    session.communicate()
    assert [process.name() for process in find(directory)] == ["sleep"]
    assert home.remove_orphans(tmp_path) == [directory]
    assert find(directory) == []
    assert not directory.exists()


def test_a_disk_without_room_is_refused_with_what_there_is(tmp_path: Path) -> None:
    home.require_room(tmp_path, 0)
    with pytest.raises(ClusterError, match=rf"{tmp_path.parent}: \d+ GiB are free, a node needs 1e\+06; TMPDIR names"):
        home.require_room(tmp_path, 1e6)


def test_the_cluster_of_a_living_session_is_left_alone(tmp_path: Path) -> None:
    directory = home.owned_directory(tmp_path)
    start("sleep", ["sleep", "600"], directory, lambda: True)
    assert home.remove_orphans(tmp_path) == []
    assert [process.name() for process in find(directory)] == ["sleep"]
    home.remove(directory)


def test_a_number_that_another_process_has_now_is_not_the_owner(tmp_path: Path) -> None:
    directory = home.owned_directory(tmp_path)
    (directory / home.OWNER_FILE).write_text(f"{os.getpid()} 1.0")
    assert home.remove_orphans(tmp_path) == [directory]


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
