"""A user's own function, `module:function`, called with (question, response, label, metadata); plain or `async def`.

With `judges: Group` it gets all responses to a prompt at once and returns as many numbers. It runs in a separate
process (`processes/function_workers.py`). Calls of an `async def` function run together: a slow judge delays once.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from rljob_api.sections import CONCURRENCY, Judges, Judging, RewardKind
from rljob_trainer.processes.call_results import Asked, FailedCall, Result
from rljob_trainer.processes.function_worker import Setup
from rljob_trainer.processes.function_workers import FunctionError, Worker
from rljob_trainer.reporting.losses import AwayError
from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Failure, Response, Score
from rljob_trainer.rewards.sandboxed import SandboxedFunction

MATH = "rljob_trainer.rewards.math_answer:math_answer"


class Caller(Protocol):
    """Where a function is called."""

    def results(self, calls: Sequence[Asked]) -> Iterator[Result]:
        """Yield the result of each call, in order. Raises FunctionError."""

    def close(self) -> None:
        """End what runs there. Raises FunctionError."""


@dataclass(frozen=True, slots=True)
class PythonReward:
    """Judges by a function in a worker."""

    worker: Caller
    by_group: bool

    def __call__(self, responses: Sequence[Response]) -> Iterator[Score]:
        """Yield the scores; a failed call over a group fails all of its responses.

        Raises AwayError when the worker, which has run before, cannot be started again.
        """
        asked = [_by_group(group) for group in _groups(responses)] if self.by_group else list(map(_alone, responses))
        with _errors(AwayError):
            for call, result in zip(asked, self.worker.results(asked), strict=True):
                if isinstance(result, FailedCall):
                    yield from [Failure(result.reason)] * (len(call.arguments[1]) if self.by_group else 1)
                else:
                    yield from result

    def close(self) -> None:
        """End the worker. Raises RewardError."""
        with _errors(RewardError):
            self.worker.close()


def python_reward(
    spec: Judging, log: Path, alive: Callable[[], None], clock: Callable[[], float] = time.monotonic
) -> PythonReward:
    """Start the function's worker; raise RewardError if the function cannot be called in this way."""
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
    if spec.sandbox is not None:
        with _errors(RewardError):
            return PythonReward(SandboxedFunction.start(setup, log, spec.concurrency, alive), by_group)
    worker = Worker(name, setup, log, spec.concurrency, alive, clock)
    with _errors(RewardError):
        is_async = worker.is_async
    if not is_async and spec.concurrency != CONCURRENCY:
        worker.close()
        raise RewardError(
            f"reward.concurrency {spec.concurrency} would not be used: {name} is no `async def` function, and is "
            "called once at a time; leave it out"
        )
    return PythonReward(worker, by_group)


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
