"""Runs users' functions in separate processes (`function_worker.py`), with limits of time and memory.

A process is started once, and again after it had to be killed; `function_pool.py` has several. Its keeper
(`keeper.py`) kills it with all that it has started when it ends, when it is stopped, and when this process dies.
"""

import logging
import os
import pickle
import secrets
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import astuple, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType

from rljob_api.credentials import is_secret
from rljob_trainer.processes import answers, function_worker
from rljob_trainer.processes.answers import ANY, SCORES, TEXT, Reply
from rljob_trainer.processes.call_results import FORGED, Asked, CallResults, FailedCall, Result
from rljob_trainer.processes.function_worker import Setup
from rljob_trainer.processes.kept_process import LOG_FOLLOWS, KeptProcess, ProcessError

log = logging.getLogger(__name__)

START_S = 300.0
"""longest time for the function's module to be imported [s]"""
NUMBER_BYTES = 16
"""of the number of a call"""
LOOK_S = 0.2
"""between two looks whether the process is still there [s]"""
STOPS_S = 5.0
"""longest time from the end of a connection to that of the process [s]"""
GRACE_S = 1.0
"""for an `async def` function that is out of time to be cancelled, before its process is killed [s]"""
REST_S = 1.0
"""longest time for the rest of an answer that has begun [s]"""
SILENT = "does not talk any more"
NONE: frozenset[str] = frozenset()
PART_BYTES = 1 << 16
"""read at once"""
MOST_SHOWN = 4000
"""characters of a log in a message"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""NumPy would start a thread for each core of the node, whose memory alone exceeds memoryMib on a node of 64 cores"""
TRACE_S = 0.1
"""for the stacks of a process that hangs to reach its log [s]"""


class FunctionError(Exception):
    """A function cannot be used: its process does not start, or does not load it. The text names the function."""


@dataclass
class Worker:
    """One process for one function."""

    name: str
    """of the reward, for messages"""
    setup: Setup
    log: Path
    """gets what the function prints, its tracebacks, and its stacks when it hangs"""
    concurrency: int
    """calls of an `async def` function that are under way at once"""
    alive: Callable[[], None]
    """called again and again during calls, whose time is limited"""
    clock: Callable[[], float] = time.monotonic
    _running: "Running | None" = field(default=None, init=False)
    _waiting: "deque[Waiting]" = field(default_factory=deque, init=False)
    _pending: "dict[str, Pending]" = field(default_factory=dict, init=False)

    @property
    def _read(self) -> CallResults:
        return CallResults(self.name, self.setup)

    @property
    def is_async(self) -> bool:
        return self.start().is_async

    def start(self) -> "Running":
        """Start the process unless it runs. Raises FunctionError when the function cannot be used."""
        if self._running is None:
            self._running = start(self.setup, self.log, self.alive, self.clock)
        return self._running

    @property
    def room(self) -> int:
        """How many calls may be under way at once."""
        return self.concurrency if self.is_async else 1

    def add(self, index: int, call: Asked) -> None:
        """Have one more call made in the next turns; `index` names it among those without a result."""
        self._waiting.append(Waiting(index, call))

    def turn(self) -> dict[int, Result]:
        """Send calls that wait, and look for answers for a moment; return the results that are known then.

        Raises FunctionError when the process cannot be started again.
        """
        self._send()
        return self._answers()

    def close(self) -> None:
        """End the process, and forget its calls."""
        self._waiting.clear()
        self._pending.clear()
        self._end()

    def _end(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _send(self) -> None:
        if not self._pending and self._running is not None and self._running.has_said_more:
            self._end()  # a call that is over has left something
        running = self.start()
        limit_s = self.setup.timeout_s + (GRACE_S if running.is_async else 0.0)
        while self._waiting and len(self._pending) < self.room:
            asked, number = self._waiting.popleft(), secrets.token_hex(NUMBER_BYTES)
            self._pending[number] = Pending(asked, self.clock() + limit_s)
            try:
                running.send((number, asked.call.arguments))
            except OSError:
                return  # it has ended, or reads no more: its answer will not come either

    def _answers(self) -> dict[int, Result]:
        """Wait for an answer, for the end of the process or of a call's time, or a moment; return what is known then.

        After an answer that is not ours all calls under way are made once more: one that is over may have written it.
        """
        running = self.start()
        self.alive()
        answer = running.receive(min(LOOK_S, self._time_left_s()))
        if answer is not None and (known := self._pending.pop(answer["number"], None)) is not None:
            return {known.asked.index: self._read.result(known.asked.call, answer)}
        if answer is not None or running.is_forged:
            return self._once_more()
        if (end := running.end) is not None:
            return self._give_up(NONE, end)
        if self._time_left_s() == 0.0:
            running.trace()
            now = self.clock()
            late = frozenset(number for number, call in self._pending.items() if call.deadline <= now)
            return self._give_up(late, "was killed")
        return {}

    def _time_left_s(self) -> float:
        """Return the time until the first of the calls is late [s]."""
        return max(0.0, min(call.deadline for call in self._pending.values()) - self.clock())

    def _once_more(self) -> dict[int, Result]:
        """Kill the process and let calls wait again, except those that had to already: return their failures."""
        first = {number: call for number, call in self._pending.items() if not call.asked.is_second}
        for number, call in reversed(first.items()):
            self._waiting.appendleft(replace(call.asked, is_second=True))
            del self._pending[number]
        return self._give_up(NONE, FORGED)

    def _give_up(self, late: Set[str], end: str) -> dict[int, Result]:
        """Kill the process; return failures for all that it was doing."""
        log_tail = self.start().stop()
        self._running = None
        log.warning("action=kill_worker reward=%s calls=%d", self.name, len(self._pending))
        failures: dict[int, Result] = {}
        for number, call in self._pending.items():
            asked = call.asked.call
            failure = self._read.late(asked) if number in late else self._read.gone(asked, end, len(self._pending) - 1)
            failures[call.asked.index] = FailedCall(f"{failure.reason}{LOG_FOLLOWS}\n{log_tail}")
        self._pending.clear()
        return failures


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that is to be sent."""

    index: int
    """of the call, in its batch"""
    call: Asked
    is_second: bool = False
    """whether it was sent to a process before that gave a wrong answer"""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that has been sent."""

    asked: Waiting
    deadline: float
    """on the worker's clock [s]"""


@dataclass
class Running:
    """A process that has said it is ready."""

    process: KeptProcess
    connection: Connection
    kinds: frozenset[str]
    """results that a call may have"""
    is_async: bool = False
    is_forged: bool = field(default=False, init=False)
    """whether it has written what our own program does not write: it has to be killed"""
    _broken: bool = field(default=False, init=False)
    _received: bytes = field(default=b"", init=False)
    """begin of a message"""
    _began: float = field(default=0.0, init=False)
    """when that began [s]"""

    def send(self, call: function_worker.Call) -> None:
        """Send a call; raise OSError when it is not taken."""
        try:
            self.connection.send_bytes(pickle.dumps(call))
        except OSError:
            self._broken = True
            raise

    def receive(self, timeout_s: float) -> Reply | None:
        """Return an answer, or None if there is none in time, or one that is forged."""
        message = self.message(timeout_s)
        try:
            return None if message is None else answers.result(message, self.kinds)
        except answers.AnswerError:
            self.is_forged = True
            return None

    def message(self, timeout_s: float) -> bytes | None:
        """Return a message, or None if there is no whole one in time. Never waits for the rest of one."""
        try:
            message, self._received = answers.split(self._received)
            if message is None and not self._broken and self.connection.poll(timeout_s):
                self._began = self._began if self._received else time.monotonic()
                if not (part := os.read(self.connection.fileno(), PART_BYTES)):
                    self._broken = True
                message, self._received = answers.split(self._received + part)
        except OSError:  # ended
            self._broken = True
            return None
        except answers.AnswerError:
            self.is_forged = True
            return None
        if message is None and self._received and time.monotonic() - self._began > REST_S:
            self.is_forged = True
        return message

    @property
    def has_said_more(self) -> bool:
        """Whether something came after the last answer."""
        return bool(self._received) or (not self._broken and self.connection.poll(0))

    @property
    def end(self) -> str | None:
        """How the process ended; None while it runs."""
        ended = self.process.wait(STOPS_S if self._broken else 0.0)
        if ended is None:
            return SILENT if self._broken else None
        return ended_with(ended.code)

    def trace(self) -> None:
        """Have the stacks of all threads written to the log."""
        try:
            os.kill(self.process.pid, function_worker.TRACE_SIGNAL)
        except ProcessLookupError:
            return
        self.process.wait(TRACE_S)

    def stop(self) -> str:
        """Kill the process with all that it has started; return the last lines of its log."""
        self.connection.close()
        try:
            self.process.stop()
        except ProcessError as error:
            raise FunctionError(f"a reward's process cannot be ended: {error}") from error
        return last_lines(self.process)


def variables(environ: Mapping[str, str], secret_env: Collection[str]) -> dict[str, str | None]:
    """Return how the environment of a function differs from the trainer's: it has no secrets but these."""
    withheld = {name: None for name, value in environ.items() if is_secret(name, value) and name not in secret_env}
    return {name: number for name, number in ONE_THREAD.items() if name not in environ} | withheld


def start(
    setup: Setup,
    log_file: Path,
    alive: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Running:
    """Start a process, and have it load the function. Raises FunctionError.

    `environment` are variables that it gets beside ours.
    """
    directory = tempfile.mkdtemp(prefix="rljob-")  # short and private: it holds a unix socket
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{directory}/reward")
            door.listen(1)
            door.settimeout(LOOK_S)
            command = [sys.executable, "-u", function_worker.__file__, f"{directory}/reward"]
            changes = {**variables(os.environ, setup.secret_env), **environment}
            process = KeptProcess(command, changes, log_file)
            try:
                connection = accepted(door, process, setup, clock)
                running = Running(process, connection, kinds(setup))
                return introduced(running, setup, alive, clock)
            except BaseException:
                process.stop()
                raise
    except ProcessError as error:
        raise FunctionError(f"{setup.field} {setup.function}: its process does not start: {error}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def kinds(setup: Setup) -> frozenset[str]:
    """Return the results that calls may have."""
    if setup.returns_any:
        return ANY
    return TEXT if setup.returns_text else SCORES


def accepted(door: socket.socket, process: KeptProcess, setup: Setup, clock: Callable[[], float]) -> Connection:
    deadline = clock() + START_S
    while clock() < deadline and process.exit is None:
        try:
            channel, _ = door.accept()
        except TimeoutError:
            continue
        channel.settimeout(None)
        # A process that hangs reads nothing: we do not hang.
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(setup.timeout_s))
        return Connection(channel.detach())
    raise FunctionError(
        f"{setup.field} {setup.function}: its process does not start{LOG_FOLLOWS}\n{last_lines(process)}"
    )


def timeval(seconds: float) -> bytes:
    """Return a time as the kernel wants it for a socket."""
    return struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))  # 0 would be for ever


def introduced(running: Running, setup: Setup, alive: Callable[[], None], clock: Callable[[], float]) -> Running:
    """Send the process what to load, and wait until it has."""
    name, process = f"{setup.field} {setup.function}", running.process
    try:
        running.connection.send_bytes(pickle.dumps((sys.path, *astuple(setup))))
        deadline, message = clock() + START_S, None
        while (message := running.message(LOOK_S)) is None and clock() < deadline:
            if running.is_forged or running.end is not None:
                raise EOFError
            alive()
        if message is None or clock() > deadline:
            raise FunctionError(
                f"{name}: its import took longer than {START_S:g} s{LOG_FOLLOWS}\n{last_lines(process)}"
            )
        answer = answers.introduction(message)
    except (EOFError, OSError, ValueError) as error:
        ended = process.wait(STOPS_S)
        said = ended_with(ended.code) if ended else "does not answer"
        raise FunctionError(
            f"{name}: the process {said} while it was loaded{LOG_FOLLOWS}\n{last_lines(process)}"
        ) from error
    if "refused" in answer:
        raise FunctionError(answer["refused"])
    running.is_async = answer["is_async"]
    return running


def last_lines(process: KeptProcess) -> str:
    """Return the end of the log, however long its lines are."""
    return process.log_tail()[-MOST_SHOWN:]


def ended_with(code: int | None) -> str:
    if code is None:
        return "was killed"
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
