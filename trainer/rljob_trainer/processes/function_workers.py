"""Runs users' functions in processes of their own (`function_worker.py`), with limits of time and memory.

It is started once, and again after it had to be killed. Its keeper (`keeper.py`) kills it with all that it has started
when it ends, when it is stopped, and when this process dies.
"""

import json
import logging
import os
import pickle
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import astuple, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rljob_trainer.processes import function_worker, sandbox
from rljob_trainer.processes.function_worker import Reply, Setup
from rljob_trainer.processes.kept_process import LOG_FOLLOWS, KeptProcess, ProcessError

log = logging.getLogger(__name__)

START_S = 300.0
"""longest time for the function's module to be imported [s]"""
LOOK_S = 0.2
"""between two looks whether the process is still there [s]"""
STOPS_S = 5.0
"""longest time from the end of a connection to that of the process [s]"""
GRACE_S = 1.0
"""for an `async def` function that is out of time to be cancelled, before its process is killed [s]"""
REST_S = 1.0
"""longest time for the rest of an answer that has begun [s]"""
SILENT = "does not talk any more"
NONE: frozenset[int] = frozenset()
MOST_BYTES = 2**24
"""of an answer"""
MOST_SHOWN = 4000
"""characters of a log in a message"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""NumPy would start a thread for each core of the node, whose memory alone exceeds memoryMib on a node of 64 cores"""
TRACE_S = 0.1
"""for the stacks of a process that hangs to reach its log [s]"""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of the function."""

    prompt: str
    """uid of the prompt, for messages"""
    arguments: tuple[Any, ...]


class FunctionError(Exception):
    """A function cannot be used: its process does not start, or does not load it. The text names the function."""


@dataclass(frozen=True, slots=True)
class FailedCall:
    """Stands for the scores of a call that failed."""

    reason: str
    """which function failed on which prompt, and how"""


Result = tuple[float, ...] | FailedCall
"""the scores of a call"""


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
    _calls: int = field(default=0, init=False)

    @property
    def is_async(self) -> bool:
        return self.start().is_async

    def start(self) -> "Running":
        """Start the process unless it runs. Raises FunctionError when the function cannot be used."""
        if self._running is None:
            self._running = start(self.setup, self.log, self.alive, self.clock)
        return self._running

    def results(self, calls: Sequence[Asked]) -> Iterator[Result]:
        """Yield the result of each call, in order. Raises FunctionError when the process cannot be started again."""
        waiting = deque(enumerate(calls))
        pending: dict[int, Pending] = {}
        done: dict[int, Result] = {}
        try:
            for index in range(len(calls)):
                while index not in done:
                    self._ask(waiting, pending)
                    done |= self._answers(pending)
                yield done.pop(index)
        finally:
            if pending:  # nobody waits for them any more
                self.close()

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def _ask(self, waiting: "deque[tuple[int, Asked]]", pending: "dict[int, Pending]") -> None:
        running = self.start()
        room = self.concurrency if running.is_async else 1
        limit_s = self.setup.timeout_s + (GRACE_S if running.is_async else 0.0)
        while waiting and len(pending) < room:
            index, call = waiting.popleft()
            self._calls += 1
            pending[self._calls] = Pending(index, call, self.clock() + limit_s)
            try:
                running.send((self._calls, call.arguments))
            except OSError:
                return  # it has ended, or reads no more: its answer will not come either

    def _answers(self, pending: "dict[int, Pending]") -> dict[int, Result]:
        """Wait for an answer, or for the end of the process or of somebody's time; return what is known then."""
        running = self.start()
        while True:
            self.alive()
            answer = running.receive(min(LOOK_S, self._time_left_s(pending)))
            if answer is not None:
                call = pending.pop(answer.get("number", 0), None)
                return {call.index: self._result(call.call, answer)} if call else self._give_up(pending, NONE, SILENT)
            if (end := running.end) is not None:
                return self._give_up(pending, NONE, end)
            if self._time_left_s(pending) == 0.0:
                running.trace()
                now = self.clock()
                late = frozenset(number for number, call in pending.items() if call.deadline <= now)
                return self._give_up(pending, late, "was killed")

    def _time_left_s(self, pending: "dict[int, Pending]") -> float:
        """Return the time until the first of the calls is late [s]."""
        return max(0.0, min(call.deadline for call in pending.values()) - self.clock())

    def _give_up(self, pending: "dict[int, Pending]", late: Set[int], end: str) -> dict[int, Result]:
        """Kill the process; return failures for all that it was doing."""
        log_tail = self.start().stop()
        self._running = None
        log.warning("action=kill_worker reward=%s calls=%d", self.name, len(pending))
        failures: dict[int, Result] = {}
        for number, call in pending.items():
            failure = self._late(call.call) if number in late else self._gone(call.call, end, len(pending) - 1)
            failures[call.index] = FailedCall(f"{failure.reason}{LOG_FOLLOWS}\n{log_tail}")
        pending.clear()
        return failures

    def _late(self, call: Asked) -> FailedCall:
        return FailedCall(f"{self.name} took longer than {self.setup.timeout_s:g} s (timeoutSeconds) on {_on(call)}")

    def _gone(self, call: Asked, end: str, others: int) -> FailedCall:
        beside = f", with {others} other calls under way" if others else ""
        return FailedCall(f"the process of {self.name} {end} on {_on(call)}{beside}")

    def _wanted(self, call: Asked) -> str:
        if self.setup.by_group:
            return (
                f"with judges: Group a list of {len(call.arguments[1])} finite numbers is wanted, one for each response"
            )
        return "a finite number is wanted (a function of all responses at once has judges: Group)"

    def _result(self, call: Asked, answer: Reply) -> Result:
        match answer:
            case {"scores": scores}:
                return tuple(scores)
            case {"late": True}:
                return self._late(call)
            case {"returned": value}:
                return FailedCall(f"{self.name} returned {value} for {_on(call)}; {self._wanted(call)}")
            case {"length": length}:
                wanted = len(call.arguments[1])
                return FailedCall(
                    f"{self.name} returned a list of {length} for {_on(call)}, which has {wanted} responses"
                )
            case {"memory": True}:
                memory = f"{self.setup.memory_bytes >> 20} MiB (memoryMib)"
                return FailedCall(f"{self.name} needed more than {memory} on {_on(call)}")
            case _:
                return FailedCall(f"{self.name} failed on {_on(call)}: {answer['raised']}")


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that has been sent."""

    index: int
    """of the call, in its batch"""
    call: Asked
    deadline: float
    """on the worker's clock [s]"""


@dataclass
class Running:
    """A process that has said it is ready."""

    process: KeptProcess
    connection: Connection
    is_async: bool
    _broken: bool = field(default=False, init=False)

    def send(self, call: function_worker.Call) -> None:
        """Send a call; raise OSError when it is not taken."""
        try:
            self.connection.send_bytes(pickle.dumps(call))
        except OSError:
            self._broken = True
            raise

    def receive(self, timeout_s: float) -> Reply | None:
        """Return an answer, or None if there is none in time."""
        try:
            return read(self.connection) if self.connection.poll(timeout_s) else None
        except (EOFError, OSError, ValueError):  # ended, or the function has written into our connection
            self._broken = True
            return None

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
            raise FunctionError(f"a reward's process does not go away: {error}") from error
        return last_lines(self.process)


def few_threads(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process of a function gets beside the trainer's own."""
    return {name: number for name, number in ONE_THREAD.items() if name not in environ}


def start(
    setup: Setup,
    log_file: Path,
    alive: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    box: sandbox.Settings | None = None,
) -> Running:
    """Start a process, in a sandbox if one is given, and have it load the function. Raises FunctionError."""
    directory = tempfile.mkdtemp(prefix="rljob-")  # short, and nobody else's: it holds a unix socket
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{directory}/reward")
            door.listen(1)
            door.settimeout(LOOK_S)
            command = [sys.executable, "-u", function_worker.__file__]
            if box is None:
                command += [f"{directory}/reward"]
            else:
                inside = [*command, sandbox.CONNECTION]
                command = sandbox.command_line(replace(box, connect=f"{directory}/reward"), inside)
            process = KeptProcess(command, few_threads(os.environ), log_file)
            try:
                connection = accepted(door, process, setup, clock)
                return introduced(process, connection, setup, alive, clock)
            except BaseException:
                process.stop()
                raise
    except ProcessError as error:
        raise FunctionError(f"reward.function {setup.function}: its process does not start: {error}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def accepted(door: socket.socket, process: KeptProcess, setup: Setup, clock: Callable[[], float]) -> Connection:
    deadline = clock() + START_S
    while clock() < deadline and process.exit is None:
        try:
            channel, _ = door.accept()
        except TimeoutError:
            continue
        channel.settimeout(None)
        # A process that hangs reads nothing, and one that is out of its mind may write half an answer: we do not hang.
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(setup.timeout_s))
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(REST_S))
        return Connection(channel.detach())
    raise FunctionError(
        f"reward.function {setup.function}: its process does not start{LOG_FOLLOWS}\n{last_lines(process)}"
    )


def timeval(seconds: float) -> bytes:
    """Return a time as the kernel wants it for a socket."""
    return struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))  # 0 would be for ever


def introduced(
    process: KeptProcess,
    connection: Connection,
    setup: Setup,
    alive: Callable[[], None],
    clock: Callable[[], float],
) -> Running:
    """Send the process what to load, and wait until it has."""
    name = f"reward.function {setup.function}"
    try:
        connection.send_bytes(pickle.dumps((sys.path, *astuple(setup))))
        deadline = clock() + START_S
        while not connection.poll(LOOK_S) and clock() < deadline:
            alive()
        if clock() > deadline:
            raise FunctionError(
                f"{name}: its import took longer than {START_S:g} s{LOG_FOLLOWS}\n{last_lines(process)}"
            )
        answer = read(connection)
    except (EOFError, OSError, ValueError) as error:
        ended = process.wait(STOPS_S)
        said = ended_with(ended.code) if ended else "does not answer"
        raise FunctionError(
            f"{name}: the process {said} while it was loaded{LOG_FOLLOWS}\n{last_lines(process)}"
        ) from error
    if "refused" in answer:
        raise FunctionError(answer["refused"])
    return Running(process, connection, answer["is_async"])


def read(connection: Connection) -> Reply:
    answer: Reply = json.loads(connection.recv_bytes(MOST_BYTES))
    if not isinstance(answer, dict):
        raise ValueError(answer)
    return answer


def last_lines(process: KeptProcess) -> str:
    """Return the end of the log, however long its lines are."""
    return process.log_tail()[-MOST_SHOWN:]


def ended_with(code: int | None) -> str:
    if code is None:
        return "was killed"
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _on(call: Asked) -> str:
    return f"prompt {call.prompt}"
