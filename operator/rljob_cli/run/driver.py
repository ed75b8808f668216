"""One start of the training driver on this machine: its process, and its side of the control protocol.

Its reports arrive as events in a queue, which `supervisor.py` reads; nothing is decided here.
"""

import http.client
import json
import os
import re
import resource
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from queue import SimpleQueue

from rljob_api.control import DRAIN, ENGINE, STATUS, EngineOrder, Message, Status
from rljob_api.foreign_text import said
from rljob_api.known_failure import KnownFailure, without_line
from rljob_api.reported import ReportError, read_status
from rljob_trainer.private_files import appended
from rljob_trainer.processes.parent_death import tethered
from rljob_trainer.rundir.logs import AttemptLogs

POLL_WAIT_S = 10
"""length of one long-poll [s]"""
ANSWER_S = 5.0
"""time for a request that needs no waiting [s]"""
RETRY_S = 0.2
TAIL_BYTES = 65536
STACK = "Traceback (most recent call last):\n"
MODULES = re.compile(r"^(\w+\.)+")
"""of an exception's class, as a stack ends with it"""
LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:", re.MULTILINE)
STACKS_S = 3.0
"""time for a stalled driver to write the stacks of its threads [s]"""


class DriverUnreachableError(RuntimeError):
    """The driver did not answer, or refused; the text names the request and the response."""


@dataclass(frozen=True, slots=True)
class StatusReceived:
    """The driver has reported its status."""

    pid: int
    """of that driver: its last report may arrive after its successor has started"""
    status: Status


@dataclass(frozen=True, slots=True)
class Ended:
    """The driver's process is gone."""

    exit_code: int
    """negative: the signal that ended it"""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """`rljob run` was asked to end by a signal."""

    signal: int


Event = StatusReceived | Ended | Interrupted


class Driver:
    """A driver process. Make it in the main thread: the kernel kills it when the thread that made it ends."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        address: Path,
        token: str,
        events: SimpleQueue[Event],
        logs: AttemptLogs,
    ) -> None:
        self._logs = logs
        self._aborted_after: tuple[KnownFailure | None] | None = None
        self._address = address
        self._log = log
        self._token = token
        self._events = events
        with appended(log) as output:
            self._process = subprocess.Popen(
                tethered(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, name="await-driver", daemon=True).start()
        threading.Thread(target=self._poll, name="poll-driver", daemon=True).start()

    def order(self, engine: str, order: EngineOrder) -> None:
        """Order a state of an engine; raise DriverUnreachableError if the driver does not accept it."""
        self._request("PUT", ENGINE.format(name=engine), ANSWER_S, order)

    def drain(self) -> None:
        """Ask the driver to save and end; raise DriverUnreachableError if it does not accept."""
        self._request("POST", DRAIN, ANSWER_S)

    def kill(self) -> None:
        """Kill the process; its children go with it, or are found by `leftovers`."""
        self._process.kill()

    def kill_with_stacks(self) -> None:
        """Kill the process, and give it a moment to write the stacks of all its threads into its log."""
        # Our signal looks like the crash of a library in the logs; what has failed stands there already.
        self._aborted_after = (self._logs.known_failure(),)
        with suppress(ProcessLookupError):
            # We want the stacks (PYTHONFAULTHANDLER), but no core file of many gigabytes.
            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
        self._process.send_signal(signal.SIGABRT)
        if not self._ended.wait(STACKS_S):
            self.kill()

    def last_words(self) -> str | None:
        """Return the error that the driver's log ends with; None: it ends otherwise, or cannot be read."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - TAIL_BYTES))
                return last_error(log.read().decode(errors="replace"))
        except OSError:  # the run's directory was removed
            return None

    def known_failure(self) -> KnownFailure | None:
        """Return the failure that ended the attempt, as its logs show it; None: none is known."""
        return self._aborted_after[0] if self._aborted_after else self._logs.known_failure()

    def _await_end(self) -> None:
        exit_code = self._process.wait()
        self._ended.set()
        self._events.put(Ended(exit_code))

    def _poll(self) -> None:
        revision, step = -1, None
        while not self._ended.is_set():
            try:
                status = self._status(revision)
            except (DriverUnreachableError, ValueError):
                self._ended.wait(RETRY_S)
                continue
            revision = status.revision
            if step is not None and status.progress.step > step:
                self._logs.step_finished()
            step = status.progress.step
            self._events.put(StatusReceived(self.pid, status))

    def _status(self, revision: int) -> Status:
        query, timeout_s = STATUS, ANSWER_S
        if revision >= 0:
            query, timeout_s = f"{STATUS}?since={revision}&wait={POLL_WAIT_S}", POLL_WAIT_S + ANSWER_S
        try:
            return read_status(self._request("GET", query, timeout_s))
        except ReportError as error:
            raise DriverUnreachableError(f"GET {query}: the answer is not a status: {error}") from error

    def _request(self, method: str, path: str, timeout_s: float, body: Message | None = None) -> bytes:
        data = body.model_dump_json(by_alias=True).encode() if body else None
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url() + path, data=data, headers=headers, method=method)
        try:
            with DIRECT.open(request, timeout=timeout_s) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            raise DriverUnreachableError(f"{method} {path}: {error.code} {error.read().decode()}") from error
        except (OSError, http.client.HTTPException) as error:
            raise DriverUnreachableError(f"{method} {path}: {said(error)}") from error

    def _url(self) -> str:
        try:
            address = json.loads(self._address.read_text())
        except FileNotFoundError as error:
            raise DriverUnreachableError("the driver does not listen yet") from error
        if address["pid"] != self.pid:
            raise DriverUnreachableError(f"{self._address} is of pid {address['pid']}, not of {self.pid}")
        url: str = address["url"]
        return url


def last_error(log: str) -> str | None:
    """Return the error that a log ends with, without its stack and the module of its class."""
    log = without_line(log)
    _, _, tail = log.rpartition(STACK)
    words = "\n".join(dropwhile(lambda line: line.startswith(" "), tail.rstrip().split("\n")))
    if STACK not in log or LOG_LINE.search(words):
        return None
    return MODULES.sub("", words) or None


DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""HTTP without the environment's proxies, which cannot reach this machine's ports"""
