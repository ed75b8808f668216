"""Several processes for one function, in which calls are made beside the driver's other work.

    ask ──► waiting calls ──► a thread for each process (`function_workers.py`) ──► futures

A process takes the next call when it is free. The first one starts with the pool, and says whether the function can be
used; another one where that is worth its start. An `async def` function has one process, in which its calls wait
together. What a call does costs its own process alone, and no result depends on the number of processes.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from rljob_trainer.processes.call_results import Asked, Result
from rljob_trainer.processes.function_workers import FunctionError, Worker

log = logging.getLogger(__name__)

Make = Callable[[Path, Callable[[], None]], Worker]
"""makes a worker from its log and what it calls while it waits"""


class _ClosedError(Exception):
    """The pool was closed: its results are not awaited any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call that was asked for."""

    asked: Asked
    future: "Future[Result]" = field(default_factory=Future)


class FunctionPool:
    """The processes of one function. All methods may be called from any thread."""

    def __init__(self, make: Make, log_file: Path, most: int, alive: Callable[[], None]) -> None:
        """Start the first of at most `most` processes; `alive` is called meanwhile.

        Raises FunctionError when the function cannot be used.
        """
        self.workers: list[Worker] = []
        self._make = make
        self._log_file = log_file
        self._changed = threading.Condition()
        self._waiting: deque[Call] = deque()
        self._threads: list[threading.Thread] = []
        self._began: dict[Call, float] = {}
        """calls under way, and since when [s]"""
        self._spent_s, self._finished = 0.0, 0
        self._error: Exception | None = None
        """why no call is made any more"""
        self._left: list[FunctionError] = []
        """processes that could not be ended"""
        self._closed = False
        self._starting = alive
        began = time.monotonic()
        first = make(log_file, self._look)
        self.is_async = first.is_async
        self._start_s = time.monotonic() - began
        self._most = 1 if self.is_async else most
        self._room = first.room
        self._starting = lambda: None  # those that wait for results give signs of life from now on
        self._add(first, self._serve)

    def ask(self, calls: Sequence[Asked]) -> "Sequence[Future[Result]]":
        """Have calls made; return what gets their results, or FunctionError if the process does not start again.

        A future that is cancelled is of no interest any more: if its call is under way, the process is killed.
        """
        made = [Call(asked) for asked in calls]
        with self._changed:
            if (error := self._error) is None:
                self._waiting.extend(made)
                self._grow()
                self._changed.notify_all()
        if error is not None:
            _fail(made, error)
        return [call.future for call in made]

    def close(self) -> None:
        """End all processes; calls without a result are cancelled. Raises FunctionError if one does not end."""
        with self._changed:
            self._closed = True
            waiting = tuple(self._waiting)
            self._waiting.clear()
            self._error = self._error or FunctionError("the processes of the function have ended")
            self._changed.notify_all()
        for call in waiting:
            call.future.cancel()
        for thread in self._threads:
            thread.join()
        for error in self._left:
            raise error

    def _look(self) -> None:
        """Is called again and again while a worker waits for its process."""
        self._starting()
        if self._closed:
            raise _ClosedError

    def _grow(self) -> None:
        """Start one process more if it is worth it. The lock is held."""
        if self._closed or len(self.workers) >= self._most:
            return
        longest_s = max((time.monotonic() - began for began in self._began.values()), default=0.0)
        call_s = max(longest_s, self._spent_s / self._finished if self._finished else 0.0)
        if is_worth_it(len(self._waiting), len(self.workers), call_s, self._start_s):
            number = len(self.workers) + 1
            log_file = self._log_file.with_stem(f"{self._log_file.stem}-{number}")
            self._add(self._make(log_file, self._look), self._serve_further)

    def _add(self, worker: Worker, serve: "Callable[[Worker, dict[int, Call]], None]") -> None:
        thread = threading.Thread(target=self._run, args=(worker, serve), name="reward", daemon=True)
        self.workers.append(worker)
        self._threads.append(thread)
        thread.start()

    def _run(self, worker: Worker, serve: "Callable[[Worker, dict[int, Call]], None]") -> None:
        """Make calls until the pool is closed."""
        mine: dict[int, Call] = {}
        try:
            serve(worker, mine)
        except _ClosedError:
            for call in mine.values():
                call.future.cancel()
        except Exception as error:  # noqa: BLE001  # those that wait for results get it
            with self._changed:
                self._error = error
                waiting = tuple(self._waiting)
                self._waiting.clear()
            _fail((*mine.values(), *waiting), error)
        finally:
            try:
                worker.close()
            except FunctionError as error:
                self._left.append(error)

    def _serve_further(self, worker: Worker, mine: dict[int, Call]) -> None:
        """Make calls if this further process starts: some functions cannot have more processes."""
        try:
            worker.start()
        except FunctionError as error:
            with self._changed:
                self._most = 0
            log.warning("action=start_no_more_workers reward=%s reason=%s", worker.name, str(error).partition("\n")[0])
        else:
            self._serve(worker, mine)

    def _serve(self, worker: Worker, mine: dict[int, Call]) -> None:
        number = 0
        while True:
            for call in self._taken(worker, mine):
                mine[number] = call
                worker.add(number, call.asked)
                number += 1
            if mine:
                for index, result in worker.turn().items():
                    self._settle(mine.pop(index), result)

    def _taken(self, worker: Worker, mine: dict[int, Call]) -> Sequence[Call]:
        """Return further calls, as many as there is room for; waits if none is under way. Raises _ClosedError."""
        if any(call.future.cancelled() for call in mine.values()):
            worker.close()
            self._give_back(mine)
        with self._changed:
            while not (wanted := self._wanted(self._room - len(mine))) and not mine and not self._closed:
                self._changed.wait()
            if self._closed:
                raise _ClosedError
            self._began |= dict.fromkeys(wanted, time.monotonic())
            self._grow()
            return wanted

    def _give_back(self, mine: dict[int, Call]) -> None:
        """Let calls wait again. Those that were cancelled are not taken any more."""
        with self._changed:
            self._waiting.extendleft(reversed(mine.values()))
            for call in mine.values():
                del self._began[call]
        mine.clear()

    def _wanted(self, room: int) -> Sequence[Call]:
        """Return the first calls that wait, at most `room`, without those that were cancelled. The lock is held."""
        wanted: list[Call] = []
        while self._waiting and len(wanted) < room:
            call = self._waiting.popleft()
            if not call.future.cancelled():
                wanted.append(call)
        return wanted

    def _settle(self, call: Call, result: Result) -> None:
        with self._changed:
            self._spent_s += time.monotonic() - self._began.pop(call)
            self._finished += 1
        if call.future.set_running_or_notify_cancel():
            call.future.set_result(result)


def _fail(calls: Sequence[Call], error: Exception) -> None:
    for call in calls:
        if call.future.set_running_or_notify_cancel():
            call.future.set_exception(error)


def is_worth_it(waiting: int, processes: int, call_s: float, start_s: float) -> bool:
    """Whether what waits takes the processes that there are longer than it takes to start one more."""
    return waiting * call_s > processes * start_s
