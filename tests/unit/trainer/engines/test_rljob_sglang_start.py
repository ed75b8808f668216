"""Interpreters that wait for the work of `multiprocessing`: with processes, and without SGLang."""

import multiprocessing
import multiprocessing.context
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_trainer.engines.command import GPU_SITE
from support.trainer import started_elsewhere

SPAWN = multiprocessing.get_context("spawn")
Make = Callable[..., Any]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Return how interpreters are started; they end with the test."""
    monkeypatch.syspath_prepend(GPU_SITE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(GPU_SITE), *filter(None, sys.path)]))
    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "_Popen", multiprocessing.context.SpawnProcess._Popen)
    import rljob_sglang_start

    made = []

    def make(preloads: Sequence[str], imported: Sequence[str] = ("json",)) -> Any:
        made.append(rljob_sglang_start.Interpreters(preloads, imported))
        made[-1].install()
        return made[-1]

    yield make
    for each in made:
        each.end()


def pids(interpreters: Any) -> list[int]:
    return [each.pid for each in interpreters._waiting]


def told(word: str) -> list[Any]:
    """Return what a process told that was started just now."""
    here, there = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=started_elsewhere.tell, args=(there, word))
    process.start()
    there.close()
    found: list[Any] = here.recv()
    process.join(60)
    assert process.exitcode == 0
    return [*found, process.pid]


def test_each_process_is_one_that_waited_until_there_is_none(start: Make) -> None:
    waiting = pids(start(["", ""]))
    first, second, third = told("a"), told("b"), told("c")
    assert [first[0], second[0], third[0]] == ["a", "b", "c"]
    assert [first[1], second[1]] == [first[-1], second[-1]] == waiting
    assert third[1] not in waiting
    assert {each[2] for each in (first, second, third)} == {os.getpid()}, "they are children of this process"


def test_a_process_sees_the_environment_of_its_start(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GONE", "1")
    waiting = pids(start([""]))
    monkeypatch.delenv("GONE")
    monkeypatch.setenv("NEW", "ä 2")
    _, pid, _, environment, *_ = told("a")
    assert [pid] == waiting
    assert {name: environment.get(name) for name in ("GONE", "NEW")} == {"GONE": None, "NEW": "ä 2"}
    assert environment.keys() == dict(os.environ).keys()


def test_how_a_process_ends_is_known(start: Make) -> None:
    waiting = pids(start(["", ""]))
    failed = SPAWN.Process(target=started_elsewhere.fail)
    failed.start()
    failed.join(60)
    here, there = SPAWN.Pipe(duplex=False)
    killed = SPAWN.Process(target=started_elsewhere.stay, args=(there,))
    killed.start()
    assert [failed.pid, here.recv()] == waiting
    assert killed.is_alive()
    killed.kill()
    killed.join(60)
    assert (failed.exitcode, killed.exitcode) == (7, -signal.SIGKILL)


def test_a_process_can_take_a_title(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    start([""])
    for name in list(os.environ)[:5]:
        monkeypatch.delenv(name)
    here, there = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=started_elsewhere.name_yourself, args=(there, "sglang::test"))
    process.start()
    assert here.recv() == "sglang::test"
    process.join(60)


def test_another_preload_is_spawned_and_those_that_wait_end(start: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = pids(start(["", ""]))
    library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    monkeypatch.setenv("LD_PRELOAD", library)
    _, pid, _, environment, *_ = told("a")
    assert pid not in waiting
    assert environment["LD_PRELOAD"] == library
    assert not any(psutil.pid_exists(each) for each in waiting)


def test_one_that_waits_with_a_preload_is_given_the_process_that_wants_it(
    start: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    plain, preloaded = pids(start(["", library]))
    monkeypatch.setenv("LD_PRELOAD", library)
    assert told("a")[1] == preloaded
    monkeypatch.delenv("LD_PRELOAD")
    assert told("b")[1] == plain


def test_a_program_before_the_interpreter_is_spawned(start: Make, tmp_path: Path) -> None:
    waiting = pids(start([""]))
    program = tmp_path / "bound"
    program.write_text(f'#!/bin/sh\nBOUND=1 exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    before = os.fsdecode(spawn.get_executable())
    try:
        spawn.set_executable(str(program))
        _, pid, _, environment, *_ = told("a")
    finally:
        spawn.set_executable(before)
    assert pid not in waiting
    assert environment["BOUND"] == "1"


def test_a_process_is_spawned_where_the_one_that_waited_was_killed(start: Make) -> None:
    (waiting,) = pids(start([""]))
    os.kill(waiting, signal.SIGKILL)
    psutil.Process(waiting).wait(60)
    assert told("a")[1] != waiting


def test_what_cannot_be_imported_beforehand_keeps_nothing_from_running(start: Make) -> None:
    waiting = pids(start([""], ("no_such_module", "json")))
    assert [told("a")[1]] == waiting


def test_those_that_wait_end_with_the_server() -> None:
    script = """
import os
import rljob_sglang_start
print(*[each.pid for each in rljob_sglang_start.Interpreters(["", ""], ["json"])._waiting], flush=True)
os._exit(1)
"""
    environment = {**os.environ, "PYTHONPATH": str(GPU_SITE)}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    left = [psutil.Process(int(pid)) for pid in ended.stdout.split() if psutil.pid_exists(int(pid))]
    assert psutil.wait_procs(left, 60)[1] == []


def test_the_server_runs_as_a_module_with_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text("import sys\nprint(__name__, sys.argv[1:], __spec__.name)\n")
    environment = {**os.environ, "PYTHONPATH": f"{GPU_SITE}:{tmp_path}"}
    command = [sys.executable, "-m", "rljob_sglang_start", "0", "served", "--port", "1"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "__main__ ['--port', '1'] served\n"


@pytest.mark.parametrize(("cuda", "expected"), [("'12.9'", "cu12"), ("'13.0'", "cu13"), ("None", "")])
def test_the_memory_saver_is_found_without_importing_torch(
    start: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str, expected: str
) -> None:
    for package in ("torch", "torch_memory_saver"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError\n")
    (tmp_path / "torch/version.py").write_text(f"cuda = {cuda}\n")
    for version in ("cu12", "cu13"):
        (tmp_path / f"torch_memory_saver_hook_mode_preload_{version}.abi3.so").touch()
    script = "import rljob_sglang_start; print(rljob_sglang_start.memory_saver())"
    environment = {"PYTHONPATH": f"{GPU_SITE}:{tmp_path}", "LD_PRELOAD": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found = str(tmp_path / f"torch_memory_saver_hook_mode_preload_{expected}.abi3.so") if expected else ""
    assert done.stdout.strip() == found
