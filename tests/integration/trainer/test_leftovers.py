"""What a run leaves behind when its processes are killed, and that it is removed: real processes, real Ray."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rljob_trainer.processes import leftovers
from rljob_trainer.processes.keeper import NOTES
from rljob_trainer.processes.leftovers import LeftoverError, clean, create_scratch, find, run_id, scratch, shared_memory
from rljob_trainer.processes.parent_death import tethered
from support.processes import gone

SUPPORT = Path(__file__).parents[2] / "support" / "trainer"
TREE = SUPPORT / "fake_tree.py"
NAMES = ("driver", "raylet", "worker", "server", "part")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The directory of a run; nothing of the run outlives the test."""
    path = tmp_path / "run"
    path.mkdir()
    yield path
    clean(run_id(path), path, grace_s=0.2)


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, **leftovers.environment(run_id(directory))}


def start_tree(directory: Path) -> subprocess.Popen[bytes]:
    tree = subprocess.Popen([sys.executable, "-S", TREE, directory], env=environment(directory), start_new_session=True)
    wait_until(lambda: all((directory / name).exists() for name in NAMES))
    return tree


def pid(directory: Path, name: str) -> int:
    return int((directory / name).read_text())


def wait_until(is_so, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("victim", NAMES)
def test_the_rest_of_a_tree_is_found_and_removed_whoever_was_killed(directory, victim):
    with start_tree(directory) as tree:
        os.kill(pid(directory, victim), signal.SIGKILL)
        wait_until(lambda: gone(pid(directory, victim)))
        cleaned = clean(run_id(directory), directory, grace_s=0.2)
        assert len(cleaned.processes) == len(NAMES) - 1
        assert [name for name in NAMES if not gone(pid(directory, name))] == []
        tree.wait(5)


def test_a_process_that_ends_while_it_is_looked_at_hides_no_other(directory, monkeypatch):
    with (
        start_tree(directory) as tree,
        subprocess.Popen(["sleep", "60"]) as ending,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        below = [psutil.Process(ending.pid), psutil.Process(other.pid)]
        ending.kill()
        ending.wait()
        monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: below)
        assert below[1] in find(run_id(directory))
        monkeypatch.undo()
        other.kill()
        clean(run_id(directory), directory, grace_s=0.2)
        tree.wait(5)


def test_another_run_is_not_touched(directory, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with start_tree(other) as tree:
        create_scratch(run_id(other))
        assert clean(run_id(directory), directory).processes == ()
        assert not any(gone(pid(other, name)) for name in NAMES)
        assert scratch(run_id(other)).exists()
        clean(run_id(other), other, grace_s=0.2)
        tree.wait(5)


def test_scratch_shared_memory_and_address_are_removed(directory):
    run = run_id(directory)
    (create_scratch(run) / "session").mkdir()
    shared_memory(run).mkdir()
    (directory / "control.json").touch()
    (directory / "events.jsonl").touch()
    assert len(clean(run, directory).files) == 3
    assert [path.name for path in directory.iterdir()] == ["events.jsonl"]
    assert not scratch(run).exists()
    assert not shared_memory(run).exists()


def test_shared_memory_that_a_killed_process_has_mapped_is_removed(directory):
    segment = Path(f"/dev/shm/psm_{run_id(directory)}")
    code = (
        f"import mmap, time; file = open('{segment}', 'wb+'); file.truncate(8); "
        "mapping = mmap.mmap(file.fileno(), 8); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=environment(directory), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert segment in clean(run_id(directory), directory).files
    assert not segment.exists()


def test_a_semaphore_of_a_killed_process_is_removed(directory):
    code = "import multiprocessing, time; lock = multiprocessing.get_context('spawn').Lock(); "
    code += "print(lock._semlock.name, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], env=environment(directory), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        semaphore = Path("/dev/shm/sem." + process.stdout.readline().decode().strip().removeprefix("/"))
        assert semaphore.exists()
        clean(run_id(directory), directory, grace_s=0.0)  # killed at once, and its resource tracker with it
    assert not semaphore.exists()


def test_shared_memory_of_a_keeper_that_was_killed_too_is_removed(directory):
    run = run_id(directory)
    segment, others = Path(f"/dev/shm/psm_{run}"), directory / "precious"
    for path in (segment, others):
        path.touch()
    (create_scratch(run) / "rljob-engine").mkdir()
    (scratch(run) / "rljob-engine" / NOTES).write_text(f"{segment}\n{others}")
    clean(run, directory)
    assert not segment.exists()
    assert others.exists()


def test_cleaning_twice_finds_nothing(directory):
    clean(run_id(directory), directory)
    assert clean(run_id(directory), directory) == leftovers.Cleaned((), ())


def test_a_run_is_the_same_by_every_name_of_its_directory(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(directory)
    assert {run_id(Path("run")), run_id(Path("./run/../run")), run_id(tmp_path / "link")} == {run_id(directory)}
    assert run_id(tmp_path / "run2") != run_id(directory)


def test_scratch_that_somebody_else_has_made_is_refused(directory):
    scratch(run_id(directory)).symlink_to(directory)
    with pytest.raises(LeftoverError, match="belongs to another user"):
        create_scratch(run_id(directory))


def test_a_tethered_process_dies_with_its_parent(directory):
    child = "import os, subprocess, sys, time; sys.path[:0] = {path!r}; "
    child += "from rljob_trainer.processes.parent_death import tethered; "
    child += "print(subprocess.Popen(tethered(['sleep', '60'])).pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", child.format(path=sys.path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    number = int(parent.stdout.readline())
    wait_until(lambda: psutil.Process(number).name() == "sleep")
    parent.kill()
    parent.communicate()
    wait_until(lambda: gone(number), timeout_s=2)


def test_a_tethered_process_dies_with_the_thread_that_started_it():
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(subprocess.Popen(tethered(["sleep", "60"])))
        wait_until(lambda: psutil.Process(started[0].pid).name() == "sleep")

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert started[0].wait(5) == -signal.SIGKILL


def test_a_tethered_process_is_the_command_itself():
    with subprocess.Popen(tethered(["sleep", "60"])) as process:
        wait_until(lambda: psutil.Process(process.pid).name() == "sleep")
        process.kill()


def test_a_process_whose_parent_is_gone_already_does_not_start():
    command = tethered(["echo", "started"])
    command[4] = "1"
    ended = subprocess.run(command, capture_output=True, check=False, timeout=10)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"the parent process 1 is gone" in ended.stderr


RAY_DRIVER = """
import os, time, ray
ray.init(address="local", num_cpus=1, include_dashboard=False, _temp_dir=os.environ["TMPDIR"], log_to_driver=False,
         object_store_memory=80 * 2**20)

@ray.remote
class Worker:
    def pid(self):
        return os.getpid()

    def work(self):
        time.sleep(600)

worker = Worker.remote()
number = ray.get(worker.pid.remote())
worker.work.remote()
print(number, flush=True)
time.sleep(600)
"""


def test_nothing_of_ray_outlives_a_killed_driver(directory):
    run = run_id(directory)
    create_scratch(run)
    before = set(Path("/dev/shm").iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", RAY_DRIVER],
        env=environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as driver:
        assert driver.stdout is not None
        worker = int(driver.stdout.readline())
        everything = {process.pid: process.name() for process in find(run)}
        driver.kill()
    assert {"gcs_server", "raylet"} < set(everything.values())
    wait_until(lambda: all(gone(number) for number, name in everything.items() if name == "raylet"))
    # Ray's agents are orphans now, which would wait a minute for the GCS; they are found only by their mark.
    clean(run, directory)
    assert [name for number, name in everything.items() if not gone(number)] == []
    assert gone(worker)
    assert not scratch(run).exists()
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "plasma" in path.name]
