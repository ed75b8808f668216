"""A sandbox of this machine: the server of a pod (`conversations/pod_server.py`) in namespaces.

It starts at the first call, and again after it has ended. Only this process reaches its socket.
"""

import importlib.util
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rljob_api.tool_protocol import DIGEST_VARIABLE, MODULE, digest
from rljob_trainer.processes import sandbox
from rljob_trainer.processes.function_workers import ONE_THREAD
from rljob_trainer.processes.kept_process import KeptProcess, ProcessError
from rljob_trainer.sandboxes.call_process import MOST_PROCESSES
from rljob_trainer.sandboxes.client import Client

START_S = 60.0
"""longest time for the server to start [s]"""
LOOK_S = 0.02
ENVIRONMENT = {**ONE_THREAD, "PYTHONDONTWRITEBYTECODE": "1"}
"""a sandbox limits threads, too"""
OF_THE_SERVER = 8
"""threads of the server, which take part in the limit of processes"""
OURS = ("rljob_api", "rljob_trainer")


class NamespaceError(Exception):
    """A sandbox does not start, or does not go away."""


def box(functions: Iterable[str], read_only_paths: Iterable[str] = ()) -> sandbox.Settings:
    """Return the sandbox of functions `module:function`, with their modules and these paths."""
    modules = {path.partition(":")[0].partition(".")[0] for path in functions}
    places = [place for module in sorted({*OURS, *modules}) for place in places_of(module)]
    return sandbox.Settings(
        read_only=(*places, *read_only_paths), processes=MOST_PROCESSES + OF_THE_SERVER, environment=ENVIRONMENT
    )


def places_of(module: str) -> list[str]:
    """Return the files and directories of a module at the top level, without importing it."""
    found = importlib.util.find_spec(module)
    if found is None:
        return []
    return [*found.submodule_search_locations] if found.submodule_search_locations else [str(found.origin)]


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers."""

    process: KeptProcess
    directory: Path
    """of its socket"""
    client: Client


@dataclass
class NamespaceServer:
    """One sandbox."""

    box: sandbox.Settings
    memory_mib: int
    """of a call"""
    log: Path
    clock: Callable[[], float] = time.monotonic
    _started: Started | None = field(default=None, init=False)

    def client(self) -> Client:
        """Return what asks the server, which is started if it does not run. Raises NamespaceError."""
        if self._started is None:
            self._started = self._start()
        return self._started.client

    @property
    def pid(self) -> int | None:
        """Its process on this machine; None: it does not run."""
        return None if self._started is None else self._started.process.pid

    def close(self) -> None:
        """End the sandbox with all that runs in it. Raises NamespaceError if it does not go away."""
        started, self._started = self._started, None
        if started is None:
            return
        try:
            started.process.stop()
        except ProcessError as error:
            raise NamespaceError(f"a sandbox does not go away: {error}") from error
        finally:
            shutil.rmtree(started.directory, ignore_errors=True)

    def _start(self) -> Started:
        """Start the server, and return once its socket is there. Raises NamespaceError."""
        directory, token = Path(tempfile.mkdtemp(prefix="rljob-")), secrets.token_hex()
        door = directory / "door"
        search_path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        given = {**self.box.environment, "PYTHONPATH": search_path, DIGEST_VARIABLE: digest(token)}
        inside = replace(self.box, door=str(door), restricts_itself=True, environment=given)
        server = [sys.executable, "-P", "-m", MODULE, "--listen", sandbox.DOOR]
        try:
            process = KeptProcess(sandbox.command_line(inside, server), {}, self.log)
        except ProcessError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise NamespaceError(f"a sandbox does not start: {error}") from error
        started = Started(process, directory, Client(str(door), token, self.memory_mib))
        deadline = self.clock() + START_S
        while not door.exists():
            ended = process.wait(LOOK_S)
            if ended is not None or self.clock() > deadline:
                self._started = started
                self.close()
                raise NamespaceError(f"a sandbox does not start: {ended or f'no socket within {START_S:g} s'}")
        return started
