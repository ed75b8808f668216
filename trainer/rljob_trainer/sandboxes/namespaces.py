"""A sandbox of this machine that runs tools, one call at a time: the server of a pod (`pod_server.py`) in namespaces.

It starts at the first call, and again after it has ended. Nobody but this process reaches its socket.
"""

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rljob_api.sections import Tools
from rljob_api.tool_protocol import DIGEST_VARIABLE, MODULE, digest
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.tool_pods import PodAwayError, PodLostError, ToolPod
from rljob_trainer.processes import sandbox
from rljob_trainer.processes.kept_process import KeptProcess, ProcessError

START_S = 60.0
"""longest time for the server to start [s]"""
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers."""

    process: KeptProcess
    directory: Path
    """of its socket"""
    pod: ToolPod


@dataclass
class NamespacePlace:
    """One sandbox."""

    settings: Tools
    box: sandbox.Settings
    log: Path
    clock: Callable[[], float] = time.monotonic
    _started: Started | None = field(default=None, init=False)

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the tool's result or its error. Raises PodAwayError, PodLostError, GenerateError."""
        try:
            return self._pod().call(path, arguments)
        except (PodAwayError, PodLostError):
            self.close()
            raise

    def load(self, path: str) -> None:
        """Have the sandbox load a tool once. Raises as `call` does."""
        try:
            self._pod().load(path)
        except (PodAwayError, PodLostError):
            self.close()
            raise

    def close(self) -> None:
        """End the sandbox with all that runs in it. Raises GenerateError if it does not go away."""
        started, self._started = self._started, None
        if started is None:
            return
        try:
            started.process.stop()
        except ProcessError as error:
            raise GenerateError(f"a sandbox of tools does not go away: {error}") from error
        finally:
            shutil.rmtree(started.directory, ignore_errors=True)

    def _pod(self) -> ToolPod:
        if self._started is None:
            self._started = self._start()
        return self._started.pod

    def _start(self) -> Started:
        """Start the server, and return once its socket is there. Raises GenerateError."""
        directory, token = Path(tempfile.mkdtemp(prefix="rljob-")), secrets.token_hex()
        door = directory / "door"
        search_path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        given = {**self.box.environment, "PYTHONPATH": search_path, DIGEST_VARIABLE: digest(token)}
        box = replace(self.box, door=str(door), restricts_itself=True, environment=given)
        server = [sys.executable, "-P", "-m", MODULE, "--listen", sandbox.DOOR]
        try:
            process = KeptProcess(sandbox.command_line(box, server), {}, self.log)
        except ProcessError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise GenerateError(f"a sandbox of tools does not start: {error}") from error
        started = Started(process, directory, ToolPod(str(door), token, self.settings))
        deadline = self.clock() + START_S
        while not door.exists():
            ended = process.wait(LOOK_S)
            if ended is not None or self.clock() > deadline:
                self._started = started
                self.close()
                raise GenerateError(f"a sandbox of tools does not start: {ended or f'no socket within {START_S:g} s'}")
        return started
