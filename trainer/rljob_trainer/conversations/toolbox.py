"""The tools that a manifest names, and the processes or pods that run them, each one call at a time.

The model makes the calls, so it receives their errors as the tool's result. They are logged, too.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from rljob_api.sections import TOOLS, Tools
from rljob_api.sizing.tool_pods import needs_isolation
from rljob_trainer import user_code
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.isolation import sandbox_for
from rljob_trainer.conversations.tool_calls import BadCall, ToolCall
from rljob_trainer.conversations.tool_pods import NamespacePlace, Pool, ToolPod
from rljob_trainer.processes.answers import Reply
from rljob_trainer.processes.call_results import FORGED
from rljob_trainer.processes.function_worker import Setup
from rljob_trainer.processes.function_workers import LOOK_S, NUMBER_BYTES, FunctionError, Running, start
from rljob_trainer.reporting.losses import AwayError, Losses
from rljob_trainer.sandboxes.client import PodAwayError, PodLostError
from rljob_trainer.sandboxes.namespaces import NamespaceServer

log = logging.getLogger(__name__)

CALL = "rljob_trainer.sandboxes.tool_worker:call"
MOST_SHOWN = 10_000
"""characters of a result"""
AWAY_S = 300.0
"""longest time without any pod that takes a call, where no run says how long it waits [s]"""
PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
"""before the next pod is tried, first and later [s]"""
MOST_LOST = 2
"""pods that one call may cost"""


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
        raise GenerateError(f"{field} is not a function")
    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except (DocstringParsingException, TypeHintParsingException, ValueError) as error:
        raise GenerateError(f"{field}: {error} (the model sees type hints and docstring, with `Args:`)") from error
    return Tool(path.partition(":")[2], path, schema)


@dataclass
class ToolProcess:
    """One process without a sandbox, started at its first call and again after it was killed."""

    settings: Tools
    log: Path
    clock: Callable[[], float] = time.monotonic
    _running: Running | None = field(default=None, init=False)

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the tool's result or its error. Raises FunctionError.

        Blocks until the time limit at most, or twice as long: after an answer that is not ours, which the call before
        may have left, the call is made once more in a new process.
        """
        said = self._called(path, arguments)
        return said if said is not None else self._called(path, arguments) or f"Error: the tool's process {FORGED}"

    def _called(self, path: str, arguments: Mapping[str, Any]) -> str | None:
        """Return the result or the error; None: the process has been killed for an answer that is not ours."""
        running = self._running = self._running or start(self._setup(), self.log, lambda: None)
        number = secrets.token_hex(NUMBER_BYTES)
        deadline = self.clock() + self.settings.timeout_seconds
        with suppress(OSError):  # it has ended: seen below
            running.send((number, (path, arguments)))
        while (left_s := deadline - self.clock()) > 0:
            answer = running.receive(min(LOOK_S, left_s))
            if answer is not None and answer["number"] == number:
                return self._said(answer)
            if answer is not None or running.is_forged:
                self.close()
                return None
            if (end := running.end) is not None:
                self.close()
                return f"Error: the tool's process {end}"
        running.trace()
        self.close()
        return f"Error: no result within {self.settings.timeout_seconds:g} s"

    def load(self, path: str) -> None:
        """Do nothing: `tools` has loaded it on this machine."""

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
            secret_env=self.settings.secret_env,
        )


class Place(Protocol):
    """Where tools run, one call at a time."""

    def load(self, path: str) -> None:
        """Make sure that a tool can be called. Raises GenerateError, and what `call` raises."""
        ...

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the tool's result or its error. Raises PodAwayError or PodLostError: take another place."""
        ...

    def close(self) -> None:
        """End what runs there."""
        ...


def places(
    known: tuple[Tool, ...], settings: Tools, pool: Pool | None, log_file: Path, clock: Callable[[], float]
) -> list[Place]:
    """Return where the tools of a run are called: in pods, if there are any for them, or in processes of this machine.

    Raises GenerateError if this machine cannot isolate them as the manifest wants.
    """
    if pool is not None and needs_isolation(settings):
        return [ToolPod(address, pool.token, settings) for address in pool.addresses]
    box = sandbox_for(settings, [each.path for each in known])
    if box is None:
        return [ToolProcess(settings, log_file, clock) for _ in range(settings.concurrency)]
    servers = [NamespaceServer(box, settings.memory_mib, log_file) for _ in range(settings.concurrency)]
    return [NamespacePlace(settings, server) for server in servers]


class Toolbox:
    """All places and their tools."""

    def __init__(
        self,
        known: tuple[Tool, ...],
        settings: Tools,
        log_file: Path,
        clock: Callable[[], float] = time.monotonic,
        pool: Pool | None = None,
        pause: Callable[[float], None] = time.sleep,
        losses: Losses | None = None,
        longest_s: float = AWAY_S,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`pool` are the pods for tools; None: there are none. `longest_s` is how long a call waits for one [s].

        `losses` learns that calls wait, and `alive` is called meanwhile.
        """
        self._paths = {each.name: each.path for each in known}
        self._places = places(known, settings, pool, log_file, clock)
        self._clock, self._pause, self._alive = clock, pause, alive
        self._losses, self._longest_s = losses or Losses(), longest_s
        self._idle: SimpleQueue[Place] = SimpleQueue()
        for place in self._places:
            self._idle.put(place)
        # As many threads as places, so that taking one never waits.
        self._threads = ThreadPoolExecutor(len(self._places), thread_name_prefix="tools")

    async def result(self, call: ToolCall | BadCall) -> str:
        """Return the result of a call, or its error, as the model sees it. Raises GenerateError and AwayError."""
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
            for place in self._places:
                place.close()
        except FunctionError as error:
            raise GenerateError(f"the process of the tools cannot be ended: {error}") from error

    def load(self) -> None:
        """Load every tool where it will run. Raises GenerateError if that is impossible, and AwayError."""
        for path in self._paths.values():
            self._somewhere(partial(_load, path))

    def _called(self, call: ToolCall) -> str:
        """Return the result of a call. Raises GenerateError and AwayError."""
        return self._somewhere(lambda place: place.call(self._paths[call.name], call.arguments))

    def _somewhere(self, ask: Callable[[Place], str]) -> str:
        """Return the answer of the first place that takes a request. Raises AwayError if none does for long."""
        who = object()
        try:
            return self._asked(ask, who)
        finally:
            self._losses.waits(who, None)

    def _asked(self, ask: Callable[[Place], str], who: object) -> str:
        deadline, pause_s, lost = self._clock() + self._longest_s, PAUSE_S, 0
        while True:
            place = self._idle.get()
            try:
                return ask(place)
            except PodAwayError as error:
                reason = str(error)
            except PodLostError as error:
                reason, lost = str(error), lost + 1
                if lost == MOST_LOST:
                    return "Error: the tool ended the pod that ran it"
            finally:
                self._idle.put(place)
            log.info("action=next_pod reason=%s", reason)
            if self._clock() > deadline:
                raise AwayError(f"no pod has taken a call of a tool for {self._longest_s:g} s: {reason}")
            self._losses.waits(who, f"a pod for tools: {reason}")
            self._alive()
            self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _load(path: str, place: Place) -> str:
    place.load(path)
    return ""
