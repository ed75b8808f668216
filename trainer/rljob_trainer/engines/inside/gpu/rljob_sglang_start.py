"""Starts SGLang's processes on a GPU side by side instead of one after the other.

    python -m rljob_sglang_start SCHEDULERS [--memory-saver] sglang.launch_server ARGUMENTS...

SGLang's server imports SGLang and PyTorch for 11 s, and then spawns schedulers and a detokenizer that import the same
for 12 s: a process that has used CUDA cannot be forked. Here the interpreters of all of them start at once. Those that
wait import too; the server gives each what `multiprocessing` gives a new one. Who finds no interpreter with the right
LD_PRELOAD, or is to run another program (as `numactl`), is spawned as ever: that is slower, and nothing else.
Written for CPython 3.11 to 3.13. Goes when SGLang starts its processes so.
"""

import importlib
import io
import json
import logging
import multiprocessing.context
import multiprocessing.process
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from multiprocessing import forkserver, popen_fork, popen_forkserver, reduction, resource_tracker, spawn, util
from pathlib import Path
from typing import Any, NamedTuple

from setproctitle import setproctitle

log = logging.getLogger(__name__)

IMPORTED = (
    "sglang.launch_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
)
READ_ONCE = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "8",
    "CUDA_MODULE_LOADING": "AUTO",
    "TRTLLM_ENABLE_PDL": "1",
    "CUTE_DSL_LOG_LEVEL": "30",
    "CUTE_DSL_LOG_TO_CONSOLE": "1",
}
"""what SGLang sets before it spawns (`_set_envs_and_config`), and libraries read when they are imported"""
WAIT = "--wait"
WORK = b"\n"
"""the byte with which descriptors travel; the environment follows"""
TITLE = "rljob::engine-waits"
MOST_DESCRIPTORS = 64
IDLE_S = 600.0
"""after which one that was not needed ends"""


class Interpreter(NamedTuple):
    """A process that waits for work, a child of this one."""

    pid: int
    place: socket.socket
    preload: str
    """its LD_PRELOAD"""


class Interpreters:
    """Processes that import what they will need, until they are given work."""

    def __init__(self, preloads: Sequence[str], imported: Sequence[str] = IMPORTED) -> None:
        """Start one for each LD_PRELOAD."""
        self._waiting = [_start(preload, imported) for preload in preloads]
        self._spawn = multiprocessing.context.SpawnProcess._Popen

    def install(self) -> None:
        """Let `multiprocessing` give work to them instead of spawning, as long as there is one that fits."""
        multiprocessing.context.SpawnProcess._Popen = staticmethod(self.run)  # type: ignore[method-assign, assignment]

    def run(self, process: multiprocessing.process.BaseProcess) -> Any:
        """Run a process of `multiprocessing` in one that fits, or spawn it."""
        wanted = os.environ.get("LD_PRELOAD", "")
        fits = next((each for each in self._waiting if each.preload == wanted), None)
        if fits is None or os.fsdecode(spawn.get_executable()) != sys.executable:
            self.end()
            return self._spawn(process)
        self._waiting.remove(fits)
        try:
            return _Given(process, fits)
        except OSError as error:
            log.warning("action=spawn reason=InterpreterLost pid=%d detail=%s", fits.pid, error)
            _kill(fits)
            return self._spawn(process)

    def end(self) -> None:
        """End those that still wait."""
        while self._waiting:
            _kill(self._waiting.pop())


class _Given(popen_fork.Popen):
    """The handle of `multiprocessing` on a process that was there before: its child, as a spawned one."""

    method = "spawn"
    DupFd = popen_forkserver._DupFd

    def __init__(self, process: multiprocessing.process.BaseProcess, interpreter: Interpreter) -> None:
        self._descriptors: list[int] = []
        self._interpreter = interpreter
        super().__init__(process)

    def duplicate_for_child(self, descriptor: int) -> int:
        """Return the place of a descriptor among those that the process is given."""
        self._descriptors.append(descriptor)
        return len(self._descriptors) - 1

    def _launch(self, process: Any) -> None:
        content = io.BytesIO()
        multiprocessing.context.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(spawn.get_preparation_data(process._name), content)
            reduction.dump(process, content)
        finally:
            multiprocessing.context.set_spawning_popen(None)
        tracker = resource_tracker.getfd()
        assert tracker is not None
        ends_when_it_ends, held = os.pipe()
        read, ends_with_us = os.pipe()
        try:
            with self._interpreter.place as place:
                environment = json.dumps(dict(os.environ)).encode()
                socket.send_fds(place, [WORK], [read, held, tracker, *self._descriptors])
                place.sendall(environment)
            _close(read, held)
            read = held = -1
            with os.fdopen(ends_with_us, "wb", closefd=False) as pipe:
                pipe.write(content.getbuffer())
        except OSError:
            _close(*(each for each in (ends_when_it_ends, held, read, ends_with_us) if each >= 0))
            raise
        self.sentinel = ends_when_it_ends
        self.pid = self._interpreter.pid
        self.finalizer = util.Finalize(self, _close, (ends_when_it_ends, ends_with_us))


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)


def _start(preload: str, imported: Sequence[str]) -> Interpreter:
    ours, its = socket.socketpair()
    with its:
        its.set_inheritable(True)
        environment = {**READ_ONCE, **os.environ} | ({"LD_PRELOAD": preload} if preload else {})
        command = [sys.executable, "-m", __spec__.name, WAIT, str(its.fileno()), *imported]
        return Interpreter(os.posix_spawn(sys.executable, command, environment), ours, preload)


def _kill(interpreter: Interpreter) -> None:
    interpreter.place.close()
    try:
        os.kill(interpreter.pid, signal.SIGKILL)
        os.waitpid(interpreter.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def wait_for_work(place: socket.socket, imported: Sequence[str]) -> int:
    """Import, wait, and be the process that is asked for; return its exit status."""
    setproctitle(TITLE)  # before the environment changes, beside which the title is kept
    for name in imported:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  # it is imported again where it is needed, and fails there
            log.warning("action=import module=%s reason=%s detail=%s", name, type(error).__name__, error)
    with place:
        place.settimeout(IDLE_S)
        try:
            work, descriptors, *_ = socket.recv_fds(place, len(WORK), MOST_DESCRIPTORS)
            if not work:
                return 0  # the server has ended, or needs no more processes
            environment = json.load(place.makefile("rb"))
        except (TimeoutError, ConnectionError, ValueError):  # ValueError: it has ended before all was sent
            return 0
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    read, _held, tracker, *given = descriptors
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    forkserver._forkserver._inherited_fds = given  # type: ignore[attr-defined]
    return int(spawn._main(read, os.dup(read)))


def memory_saver() -> str:
    """Return the library that SGLang's memory saver preloads, as `torch_memory_saver` finds it; empty: none is there.

    PyTorch is not imported for its version: that takes 3 s.
    """
    saver, torch = (find_spec(name) for name in ("torch_memory_saver", "torch"))
    if saver is None or torch is None or saver.origin is None or torch.origin is None:
        return ""
    version: Mapping[str, Any] = runpy.run_path(str(Path(torch.origin).with_name("version.py")))
    major = str(version.get("cuda") or "").partition(".")[0]
    name = f"torch_memory_saver_hook_mode_preload_cu{major}.*.so"
    package = Path(saver.origin).parent
    found = [*package.glob(name)] or [*package.parent.glob(name)]
    return ":".join(filter(None, [str(found[0]), os.environ.get("LD_PRELOAD", "")])) if len(found) == 1 else ""


def main(arguments: Sequence[str]) -> None:
    """Start the interpreters, and be SGLang's server."""
    schedulers, *rest = arguments
    usual = os.environ.get("LD_PRELOAD", "")
    has_saver = rest[0] == "--memory-saver"
    module, *its = rest[1:] if has_saver else rest
    preload = memory_saver() if has_saver else usual
    Interpreters([preload] * int(schedulers) + [usual]).install()
    sys.argv = [module, *its]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == WAIT:
        sys.exit(wait_for_work(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:]))
    main(sys.argv[1:])
