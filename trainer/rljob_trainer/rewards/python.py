"""A user's own function, `module:function`, called with (question, response, label, metadata); plain or `async def`.

With `judges: Group` it gets all responses to a prompt at once and returns as many numbers. It runs in separate
processes (`processes/function_pool.py`): a plain function in several, an `async def` function in one, in which its
calls run together, so that a slow judge delays once.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Protocol

from rljob_api.sections import CONCURRENCY, Judges, Judging, RewardKind
from rljob_trainer.processes import pod_limits
from rljob_trainer.processes.call_results import Asked, FailedCall, Result
from rljob_trainer.processes.function_pool import FunctionPool
from rljob_trainer.processes.function_worker import Setup
from rljob_trainer.processes.function_workers import FunctionError, Worker
from rljob_trainer.reporting.losses import AwayError
from rljob_trainer.rewards import ahead
from rljob_trainer.rewards.ahead import Room, awaited, size_of
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Response, Score
from rljob_trainer.rewards.sandboxed import SandboxedFunction

MATH = "rljob_trainer.rewards.math_answer:math_answer"
SHARE = 2
"""the processes of all rewards may together have this part of the memory: 1/2"""


class Caller(Protocol):
    """Where a function is called."""

    def ask(self, calls: Sequence[Asked]) -> "Sequence[Future[Result]]":
        """Have calls made beside other work; return what gets their results, or a FunctionError."""

    def close(self) -> None:
        """End what runs there. Raises FunctionError."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the driver's machine, or its pod, has for one reward."""

    cores: int
    memory_bytes: int

    @classmethod
    def here(cls, rewards: int = 1) -> "Machine":
        """Return the part of one of this number of rewards."""
        return cls(max(1, pod_limits.cores() // rewards), pod_limits.memory_bytes() // rewards)

    def processes(self, spec: Judging) -> int:
        """Return how many processes, or sandboxes, a function may have: one for each core, if memory suffices."""
        room = self.memory_bytes // SHARE // (spec.memory_mib << 20)
        wanted = self.cores if spec.concurrency == CONCURRENCY else min(self.cores, spec.concurrency)
        return max(1, min(wanted, room))


@dataclass(frozen=True, slots=True)
class PythonReward:
    """Judges by a function in other processes."""

    worker: Caller
    by_group: bool
    alive: Callable[[], None]
    """called again and again during calls, whose time is limited"""
    room: Room

    def __call__(self, responses: Sequence[Response]) -> Iterator[Score]:
        """Ask for the scores at once, and yield them; a failed call over a group fails all of its responses.

        Raises AwayError when a process, which has run before, cannot be started again.
        """
        asked = [_by_group(group) for group in _groups(responses)] if self.by_group else list(map(_alone, responses))
        return self._scores(asked, self.worker.ask(asked))

    def begin(self, responses: Sequence[Response]) -> Iterator[Score] | None:
        """Ask for the scores while others are sampled; None: too many bytes of responses wait already."""
        size = size_of(responses)
        if not self.room.take(size):
            return None
        asked = [_by_group(responses)] if self.by_group else list(map(_alone, responses))
        futures = self.worker.ask(asked)
        sizes = [size] if self.by_group else [size_of([response]) for response in responses]
        for future, each in zip(futures, sizes, strict=True):
            future.add_done_callback(partial(self.room.give_back, each))
        return self._scores(asked, futures)

    def close(self) -> None:
        """End the processes. Raises RewardError."""
        with _errors(RewardError):
            self.worker.close()

    def _scores(self, asked: Sequence[Asked], futures: "Sequence[Future[Result]]") -> Iterator[Score]:
        try:
            for call, future in zip(asked, futures, strict=True):
                with _errors(AwayError):
                    result = awaited(future, self.alive)
                if isinstance(result, FailedCall):
                    yield from [Failure(result.reason)] * (len(call.arguments[1]) if self.by_group else 1)
                else:
                    yield from result
        finally:
            for future in futures:
                future.cancel()


def python_reward(
    spec: Judging,
    log: Path,
    alive: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    machine: Machine | None = None,
) -> PythonReward:
    """Start the function's first process; raise RewardError if the function cannot be called in this way.

    `machine` is what there is for it; None: all of this one.
    """
    machine = machine or Machine.here()
    function = MATH if spec.kind is RewardKind.MATH else spec.function
    assert function is not None, "the manifest's rules ask for it"
    by_group = spec.judges is Judges.GROUP
    setup = Setup(
        function=function,
        parameters=("question", "responses" if by_group else "response", "label", "metadata"),
        by_group=by_group,
        timeout_s=spec.timeout_seconds,
        memory_bytes=spec.memory_mib << 20,
        secret_env=spec.secret_env,
    )
    name = "math-verify" if spec.kind is RewardKind.MATH else function

    def worker(log_file: Path, looks: Callable[[], None]) -> Worker:
        return Worker(name, setup, log_file, spec.concurrency, looks, clock)

    with _errors(RewardError):
        caller: Caller = (
            FunctionPool(worker, log, machine.processes(spec), alive)
            if spec.sandbox is None
            else SandboxedFunction.start(setup, log, machine.processes(spec))
        )
    return PythonReward(caller, by_group, alive, Room(machine.memory_bytes // ahead.SHARE))


@contextmanager
def _errors(kind: type[Exception]) -> Iterator[None]:
    """Raise this kind of error where the function's worker cannot be used."""
    try:
        yield
    except FunctionError as error:
        raise kind(str(error)) from error


def _groups(responses: Sequence[Response]) -> Iterator[list[Response]]:
    return (list(group) for _, group in groupby(responses, key=lambda response: response.prompt.uid))


def _alone(response: Response) -> Asked:
    prompt = response.prompt
    return Asked(prompt.uid, (prompt.question, response.text, prompt.label, prompt.metadata))


def _by_group(group: Sequence[Response]) -> Asked:
    prompt = group[0].prompt
    texts = [response.text for response in group]
    return Asked(prompt.uid, (prompt.question, texts, prompt.label, prompt.metadata))
