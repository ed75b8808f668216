"""A reward function in sandboxes of this machine: for one that runs what a model has written.

Each call has new processes, watched as those of tools are (`sandboxes/`), and no environment, files or network of the
run. A call whose sandbox ends is made once more.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rljob_trainer.processes import answers, sandbox
from rljob_trainer.processes.call_results import FORGED, Asked, CallResults, FailedCall, Result
from rljob_trainer.processes.function_worker import Setup
from rljob_trainer.processes.function_workers import FunctionError
from rljob_trainer.sandboxes.client import PodAwayError, PodLostError, PodRefusesError
from rljob_trainer.sandboxes.namespaces import NamespaceError, NamespaceServer, box

CALL = "rljob_trainer.rewards.in_sandbox:call"
TRIES = 2
"""of a call whose sandbox ends"""
ERROR = "Error: "


@dataclass(frozen=True)
class SandboxedFunction:
    """A function and the sandboxes that call it, one call at a time in each."""

    setup: Setup
    servers: tuple[NamespaceServer, ...]
    idle: "SimpleQueue[NamespaceServer]"
    threads: ThreadPoolExecutor

    @classmethod
    def start(cls, setup: Setup, log: Path, places: int) -> "SandboxedFunction":
        """Return the function, loaded in one of `places` sandboxes.

        Raises FunctionError if it cannot be called, or not here.
        """
        if (reason := sandbox.refusal()) is not None:
            raise FunctionError(f"reward.sandbox Namespaces is impossible here: {reason}")
        inside, memory_mib = box([setup.function]), setup.memory_bytes >> 20
        servers = tuple(NamespaceServer(inside, memory_mib, log) for _ in range(places))
        idle: SimpleQueue[NamespaceServer] = SimpleQueue()
        for server in servers:
            idle.put(server)
        made = cls(setup, servers, idle, ThreadPoolExecutor(places, thread_name_prefix="reward"))
        try:
            made._load()
        except FunctionError:
            made.close()
            raise
        return made

    def ask(self, calls: Sequence[Asked]) -> "Sequence[Future[Result]]":
        """Have calls made; return what gets their results, or FunctionError if a sandbox does not start again."""
        return [self.threads.submit(self._result, call) for call in calls]

    def close(self) -> None:
        """End the sandboxes, and calls in them. Raises FunctionError."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        try:
            for server in self.servers:
                server.close()
        except NamespaceError as error:
            raise FunctionError(f"reward.function {self.setup.function}: {error}") from error

    def _load(self) -> None:
        said = self._asked(None)
        text = str(said.get("text", said.get("refused", "")))
        try:
            known = answers.introduction(text.encode())
        except answers.AnswerError as error:
            name = f"reward.function {self.setup.function}"
            raise FunctionError(f"{name} cannot be loaded in its sandbox: {text.removeprefix(ERROR)}") from error
        if "refused" in known:
            raise FunctionError(known["refused"])

    def _result(self, call: Asked) -> Result:
        read, said = CallResults(self.setup.function, self.setup), self._asked(call.arguments)
        text = str(said.get("text", said.get("refused", "")))
        if text.startswith(ERROR) or "refused" in said:
            return FailedCall(f"{self.setup.function} failed on prompt {call.prompt}: {text.removeprefix(ERROR)}")
        try:
            return read.result(call, answers.result(_numbered(text), answers.SCORES))
        except answers.AnswerError:
            return read.gone(call, FORGED, 0)

    def _asked(self, arguments: Sequence[Any] | None) -> Mapping[str, Any]:
        """Return what a sandbox says. Raises FunctionError if it does not start, or refuses calls."""
        given = {"setup": astuple(self.setup), "arguments": arguments}
        server = self.idle.get()
        try:
            for _ in range(TRIES):
                try:
                    client = server.client()
                    if arguments is None:
                        client.load(self.setup.function)  # imported ahead of each call from now on
                    return client.call(CALL, given, self.setup.timeout_s)
                except (PodAwayError, PodLostError) as error:
                    server.close()
                    reason = str(error)
        except (NamespaceError, PodRefusesError) as error:
            raise FunctionError(f"reward.function {self.setup.function}: {error}") from error
        finally:
            self.idle.put(server)
        return {"text": f"{ERROR}it ended its sandbox: {reason}"}


def _numbered(text: str) -> bytes:
    """Return the answer with a number: a call that has a separate process needs none."""
    return b'{"number": "", ' + text.removeprefix("{").encode() if text.startswith("{") else text.encode()
