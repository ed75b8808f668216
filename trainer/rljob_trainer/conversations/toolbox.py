"""The tools that a manifest names, and the processes that run them, each one call at a time.

The model makes the calls, so it receives their errors as the tool's result. They are logged, too.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rljob_api.sections import TOOLS, Tools
from rljob_trainer import user_code
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.isolation import sandbox_for
from rljob_trainer.conversations.tool_calls import BadCall, ToolCall
from rljob_trainer.processes import sandbox
from rljob_trainer.processes.function_worker import LAST, Reply, Setup
from rljob_trainer.processes.function_workers import LOOK_S, FunctionError, Running, start

log = logging.getLogger(__name__)

CALL = "rljob_trainer.conversations.tool_worker:call"
MOST_SHOWN = 10_000
"""characters of a result"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    """as the model calls it"""
    path: str
    """`module:function`"""
    schema: Mapping[str, Any]
    """JSON schema that the chat template shows to the model"""


def tools(settings: Tools | None) -> tuple[Tool, ...]:
    """Return what a manifest names. Raises GenerateError for what cannot be loaded or described."""
    found = [tool(f"rollout.tools.functions {given}", given) for given in settings.functions] if settings else []
    names = [each.name for each in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise GenerateError(f"rollout.tools.functions has two tools of the name {twice[0]}: the model could not choose")
    return tuple(found)


def tool(field: str, given: str) -> Tool:
    # Not at the top: it takes seconds, and most runs have no tools.
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

    path = TOOLS.get(given, given)
    try:
        function = user_code.load(path)
    except user_code.NotThereError as error:
        raise GenerateError(f"{field}: {error}") from error
    if not callable(function):
        raise GenerateError(f"{field} is no function")
    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException, ValueError) as error:
        raise GenerateError(f"{field}: {error} (the model sees type hints and docstring, with `Args:`)") from error
    return Tool(path.partition(":")[2], path, schema)


@dataclass
class ToolProcess:
    """One process, started at its first call and again after it was killed."""

    settings: Tools
    box: sandbox.Settings | None
    """the sandbox; None: none"""
    log: Path
    clock: Callable[[], float] = time.monotonic
    _running: Running | None = field(default=None, init=False)
    _calls: int = field(default=0, init=False)

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the tool's result or its error; blocks until the time limit at most. Raises FunctionError."""
        running = self._running = self._running or start(self._setup(), self.log, lambda: None, box=self.box)
        self._calls += 1
        deadline = self.clock() + self.settings.timeout_seconds
        with suppress(OSError):  # it has ended: seen below
            running.send((self._calls, (path, arguments)))
        while (left_s := deadline - self.clock()) > 0:
            answer = running.receive(min(LOOK_S, left_s))
            if answer is not None:
                if LAST in answer:
                    self.close()
                return self._said(answer)
            if (end := running.end) is not None:
                self.close()
                return f"Error: the tool's process {end}"
        running.trace()
        self.close()
        return f"Error: no result within {self.settings.timeout_seconds:g} s"

    def close(self) -> None:
        """End the process."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _said(self, answer: Reply) -> str:
        match answer:
            case {"text": str(text)}:
                return text
            case {"memory": True}:
                return f"Error: more than {self.settings.memory_mib} MiB of memory were needed"
            case _:
                return f"Error: {answer.get('raised', 'no result')}"

    def _setup(self) -> Setup:
        return Setup(
            function=CALL,
            parameters=("path", "arguments"),
            by_group=False,
            timeout_s=self.settings.timeout_seconds,
            memory_bytes=self.settings.memory_mib << 20,
            returns_text=True,
            is_sandboxed=self.box is not None,
        )


class Toolbox:
    """All processes and their tools."""

    def __init__(
        self, known: tuple[Tool, ...], settings: Tools, log_file: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._paths = {each.name: each.path for each in known}
        box = sandbox_for(settings, [each.path for each in known])
        self._processes = [ToolProcess(settings, box, log_file, clock) for _ in range(settings.concurrency)]
        self._idle: SimpleQueue[ToolProcess] = SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        # As many threads as processes, so that taking one never waits.
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="tools")

    async def result(self, call: ToolCall | BadCall) -> str:
        """Return the result of a call, or its error, as the model sees it. Raises GenerateError."""
        if isinstance(call, BadCall):
            return f"Error: {call.reason}"
        if call.name not in self._paths:
            return f"Error: there is no tool {call.name}, only {', '.join(self._paths)}"
        try:
            said = await asyncio.get_running_loop().run_in_executor(self._threads, self._called, call)
        except FunctionError as error:
            raise GenerateError(f"the process of the tools cannot be used: {error}") from error
        if said.startswith("Error: "):
            log.info("action=tool_error tool=%s said=%.200r", call.name, said)
        return said if len(said) <= MOST_SHOWN else f"{said[:MOST_SHOWN]}…"

    def close(self) -> None:
        """End the processes and the calls in progress. Raises GenerateError."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        try:
            for process in self._processes:
                process.close()
        except FunctionError as error:
            raise GenerateError(f"the process of the tools cannot be ended: {error}") from error

    def _called(self, call: ToolCall) -> str:
        process = self._idle.get()
        try:
            return process.call(self._paths[call.name], call.arguments)
        finally:
            self._idle.put(process)
