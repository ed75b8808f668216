"""Processes in which agents run, many at once in each: `processes/function_worker.py` runs the function.

A process that ends, or in which an agent blocks for longer than it may, costs the trajectories in it, and is started
again at the next call.
"""

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api.sections import Agent
from rljob_trainer.agents.outcome import Failed, Outcome, late, outcome
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.gateway.client import HOST
from rljob_trainer.processes.answers import Reply
from rljob_trainer.processes.call_results import FORGED
from rljob_trainer.processes.function_worker import Setup
from rljob_trainer.processes.function_workers import GRACE_S, LOOK_S, NUMBER_BYTES, FunctionError, Running, start
from rljob_trainer.processes.kept_process import LOG_FOLLOWS
from rljob_trainer.reporting.losses import AwayError

log = logging.getLogger(__name__)

PARAMETERS = ("task", "base_url", "api_key")


@dataclass(frozen=True, slots=True)
class _Call:
    answer: "asyncio.Future[Outcome]"
    deadline: float


@dataclass
class _Life:
    """One process, from its start to its end. A thread reads its answers."""

    running: Running
    setup: Setup
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    calls: dict[str, _Call] = field(default_factory=dict)
    """under way, by number; changed in the loop alone"""
    over: bool = False
    closing: bool = False
    reading: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reading = threading.Thread(target=self._read, name="agents", daemon=True)
        self.reading.start()

    async def close(self) -> None:
        """End the process; the calls under way are not answered."""
        self.closing = True
        await asyncio.to_thread(self.reading.join)

    def _read(self) -> None:
        while (answer := self.running.receive(LOOK_S)) is not None or (end := self._end()) is None:
            if answer is not None:
                self.loop.call_soon_threadsafe(self._answered, answer)
        tail = self._stopped()
        self.loop.call_soon_threadsafe(self._ended, end, tail)

    def _end(self) -> str | None:
        """Return why the process is of no use any more; None: it is."""
        if self.closing:
            return "was closed"
        if self.running.is_forged:
            return FORGED
        if any(call.deadline < self.clock() for call in tuple(self.calls.values())):
            self.running.trace()
            return "was killed: an agent in it blocks without await"
        return self.running.end

    def _stopped(self) -> str:
        try:
            return self.running.stop()
        except FunctionError as error:
            return str(error)

    def _answered(self, answer: Reply) -> None:
        call = self.calls.pop(answer["number"], None)
        if call is not None and not call.answer.done():
            call.answer.set_result(outcome(answer, self.setup))

    def _ended(self, end: str, tail: str) -> None:
        self.over = True
        if not self.closing:
            log.warning("action=end_worker calls=%d reason=%s", len(self.calls), end)
        now, others = self.clock(), len(self.calls) - 1
        beside = f", with {others} other agents under way" if others > 0 else ""
        for call in self.calls.values():
            gone = Failed(f"its process {end}{beside}{LOG_FOLLOWS}\n{tail}")
            if not call.answer.done():
                call.answer.set_result(late(self.setup.timeout_s) if call.deadline < now else gone)
        self.calls.clear()


class AgentProcess:
    """One process and its successors. Belongs to one asyncio loop."""

    def __init__(self, setup: Setup, log_file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.busy = 0
        """calls under way"""
        self._setup, self._log, self._clock = setup, log_file, clock
        self._life: _Life | None = None
        self._moving = asyncio.Lock()

    async def call(self, arguments: Sequence[Any]) -> Outcome:
        """Return how the function ended. Raises AwayError if its process cannot be started again."""
        self.busy += 1
        try:
            life, number = await self._living(), secrets.token_hex(NUMBER_BYTES)
            answer: asyncio.Future[Outcome] = life.loop.create_future()
            life.calls[number] = _Call(answer, self._clock() + self._setup.timeout_s + GRACE_S)
            with suppress(OSError):  # it has ended: the thread that reads says how
                life.running.send((number, tuple(arguments)))
            return await answer
        finally:
            self.busy -= 1

    async def close(self) -> None:
        """End the process."""
        life, self._life = self._life, None
        if life is not None:
            await life.close()

    async def _living(self) -> _Life:
        async with self._moving:
            if self._life is None or self._life.over:
                try:
                    running = await asyncio.to_thread(
                        start, self._setup, self._log, lambda: None, environment=without_proxy(os.environ)
                    )
                except FunctionError as error:
                    raise AwayError(str(error)) from error
                self._life = _Life(running, self._setup, asyncio.get_running_loop(), self._clock)
            return self._life


class AgentWorkers:
    """All processes of a run."""

    def __init__(self, agent: Agent, log_file: Path) -> None:
        self.name = f"rollout.agent.function {agent.function}"
        self._setup, self._log = setup(agent), log_file
        self._processes = tuple(AgentProcess(self._setup, log_file) for _ in range(agent.processes))

    def check(self, alive: Callable[[], None]) -> None:
        """Raise GenerateError if the function cannot be called in this way."""
        try:
            running = start(self._setup, self._log, alive)
            running.stop()
        except FunctionError as error:
            raise GenerateError(str(error)) from error
        if not running.is_async:
            raise GenerateError(f"{self.name} is no `async def` function: others could not run beside it")

    async def call(self, arguments: Sequence[Any]) -> Outcome:
        """Return how the function ended in the process that has the least to do. Raises AwayError."""
        return await min(self._processes, key=lambda each: each.busy).call(arguments)

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*(each.close() for each in self._processes))


def without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which no proxy of the machine is asked for the gateway."""
    names = ("NO_PROXY", "no_proxy")
    return {name: ",".join(filter(None, (environ.get(name), HOST))) for name in names}


def setup(agent: Agent) -> Setup:
    """Return what a process is for."""
    return Setup(
        function=agent.function or "",
        parameters=PARAMETERS,
        by_group=False,
        timeout_s=agent.timeout_seconds,
        memory_bytes=agent.memory_mib << 20,
        secret_env=agent.secret_env,
        returns_any=True,
        field="rollout.agent.function",
        role="an agent",
    )
