"""A server process under a keeper: started, watched, and stopped without leftovers. Used for engines and the router."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.processes import keeper

LOG_LINES = 15
STOP_S = keeper.KILL_S + 5.0
LOG_FOLLOWS = "; log:"
"""between what happened and the lines of a log: what is shown in one line ends here"""


class ProcessError(RunError, RuntimeError):
    """A server process did not start, or did not go away."""

    exit = Exit.FAILED


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a server process ended."""

    reason: str
    """what was noticed first, for example `sglang::scheduler (pid 71) ended`"""
    code: int | None
    """the server's exit code, negative for a signal; None when it was still alive and had to be killed"""
    failed_at: float
    """unix time when it was noticed [s]"""
    log_tail: str
    survivors: tuple[int, ...] = ()
    """pids of its tree that could not be killed"""

    def __str__(self) -> str:
        """What happened, and the last lines of the log behind `; log:`."""
        code = "" if self.code is None else f" with {self.code}"
        return f"{self.reason}{code}{LOG_FOLLOWS}\n{self.log_tail}"


class KeptProcess:
    """One server process; it dies with the process that made this object."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str | None],
        log: Path,
        inherited: Collection[int] = (),
    ) -> None:
        """`environment` differs from ours by these variables; None: the process does not get it.

        `inherited` are file descriptors of ours that the process has, too, under the same numbers.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._argv = " ".join(argv)
        self._exit: ProcessExit | None = None
        self._ended = threading.Event()
        self._scratch = tempfile.mkdtemp(prefix="rljob-")  # short: SGLang makes unix sockets in it
        variables = {**os.environ, **environment, "TMPDIR": self._scratch}
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, self._scratch, str(log), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=tuple(inherited),
            env={name: value for name, value in variables.items() if value is not None},
        )
        self.pid, self._keeper_pid = self._first_line()
        threading.Thread(target=self._await_exit, name="await-exit", daemon=True).start()

    @property
    def exit(self) -> ProcessExit | None:
        """How it ended; None while it runs."""
        return self._exit

    def wait(self, timeout_s: float) -> ProcessExit | None:
        """Return how it ended, or None when it still runs after `timeout_s` [s]."""
        self._ended.wait(timeout_s)
        return self._exit

    def stop(self) -> None:
        """Kill the whole tree; raise ProcessError when something of it survives."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        if not self._ended.wait(STOP_S):
            os.kill(self._keeper_pid, signal.SIGKILL)
            raise ProcessError(f"stop process {self.pid}: its keeper did not finish within {STOP_S:g} s")
        if self._exit is not None and self._exit.survivors:
            raise ProcessError(f"stop process {self.pid}: {self._exit.survivors} of its tree could not be killed")

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        return tail(self._log)

    def _first_line(self) -> tuple[int, int]:
        assert self._keeper.stdout is not None
        line = self._keeper.stdout.readline()
        self._keeper.wait()  # it has left a child to keep the server
        if not line:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise ProcessError(f"start {self._argv}: its keeper ended; log:\n{tail(self._log)}")
        facts = json.loads(line)
        return facts["pid"], facts["keeper"]

    def _await_exit(self) -> None:
        assert self._keeper.stdout is not None
        with self._keeper.stdout as output:
            line = output.readline()
        scratch = Path(self._scratch)
        keeper.remove(scratch, keeper.noted(scratch))  # the keeper's work, unless it was killed
        self._exit = read_exit(line, tail(self._log))
        self._ended.set()


def read_exit(line: bytes, log_tail: str) -> ProcessExit:
    """Return what the keeper's last line says; without one, the keeper itself was killed, and the server with it."""
    if not line:
        return ProcessExit("its keeper was killed", None, time.time(), log_tail)
    facts = json.loads(line)
    return ProcessExit(facts["reason"], facts["code"], facts["failed_at"], log_tail, tuple(facts["survivors"]))


def tail(log: Path) -> str:
    """Return the last lines of a log, or "" when there is none."""
    if not log.exists():
        return ""
    with log.open(encoding="utf-8", errors="replace") as lines:
        return "".join(deque(lines, maxlen=LOG_LINES))
