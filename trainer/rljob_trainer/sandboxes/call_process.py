"""The process of one call in a sandbox: started ahead and watched. Only the standard library is used.

A container has no limit of its processes that it could set itself, and a limit of its memory ends the whole container.
So this program looks at all processes again and again while a call runs.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_trainer.sandboxes import pod_call

LOOK_S = 0.02
"""between two looks at the processes [s]"""
MOST_PROCESSES = 64
"""at once, threads included"""
MOST_ANSWER = 1 << 20
"""of a result [bytes]"""
SOCKET_BYTES = 1 << 18
"""that a unix socket may hold for others: belongs to no process, and longer queues are refused (`system_calls.py`)"""
PROC = Path("/proc")
FORGED = "the tool has written into its own answer"
OURS = 8
"""unix sockets of the server, at most"""
KINDS = ("RssAnon", "RssShmem", "VmSwap", "VmPTE", "HugetlbPages")
"""of memory, in /proc/PID/status; tables of pages (VmPTE) also cost where nothing was written"""
ENVIRONMENT = {
    "HOME": "/tmp",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""all that a tool gets; libraries would start a thread for each core"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one call."""

    timeout_s: float
    memory_bytes: int
    """of all its processes together"""
    processes: int = MOST_PROCESSES


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of a call have now."""

    processes: int = 0
    """with threads"""
    memory_bytes: int = 0


def verdict(usage: Usage, passed_s: float, limits: Limits) -> str | None:
    """Return why a call has to end, as its model reads it; None: it may go on."""
    if passed_s >= limits.timeout_s:
        return f"no result within {limits.timeout_s:g} s"
    if usage.memory_bytes > limits.memory_bytes:
        return f"more than {limits.memory_bytes >> 20} MiB of memory were needed"
    if usage.processes > limits.processes:
        return f"more than {limits.processes} processes and threads were started"
    return None


def usage(proc: Path = PROC) -> Usage:
    """Return what all processes but the first have; those that end meanwhile do not count."""
    found = [each for each in _each(proc) if each is not None]
    in_sockets = SOCKET_BYTES * max(0, _unix_sockets(proc) - OURS)
    return Usage(sum(threads for threads, _ in found), sum(memory for _, memory in found) + in_sockets)


def _each(proc: Path) -> Iterator[tuple[int, int] | None]:
    for directory in proc.iterdir():
        if directory.name.isdecimal() and directory.name != "1":
            yield _of_process(directory)


def _unix_sockets(proc: Path) -> int:
    """Return how many unix sockets there are, in all processes or on their way between two; gVisor may not say."""
    try:
        return (proc / "net" / "unix").read_bytes().count(b"\n") - 1  # a heading
    except OSError:
        return 0


def _of_process(directory: Path) -> tuple[int, int] | None:
    """Return threads, and memory that is not of files [bytes]."""
    try:
        lines = (line.partition(":") for line in (directory / "status").read_text(errors="replace").splitlines())
    except OSError:
        return None
    facts = {name: value.split() for name, _, value in lines}
    # gVisor shows the sum alone, and a process that ends nothing.
    kinds = KINDS if "RssAnon" in facts else ("VmRSS",)
    memory_kib = sum(int(facts[kind][0]) for kind in kinds if kind in facts)
    return int(facts["Threads"][0]) if "Threads" in facts else 1, memory_kib << 10


@dataclass
class CallProcess:
    """A process that waits for its call, and ends with it."""

    process: subprocess.Popen[bytes]
    pipe: int
    """its answer comes here"""
    memory_bytes: int
    """most that it may allocate"""

    @classmethod
    def start(cls, memory_bytes: int, imports: Iterable[str] = ()) -> "CallProcess":
        """Start the process, which imports these tools while it waits."""
        pipe, answers = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", pod_call.__file__, str(answers)],
            stdin=subprocess.PIPE,
            bufsize=0,
            cwd="/tmp",
            env=ENVIRONMENT,
            pass_fds=(answers,),
            start_new_session=True,
        )
        os.close(answers)
        assert process.stdin is not None
        search_path = [entry for entry in sys.path if entry]
        settings = {"searchPath": search_path, "memoryBytes": memory_bytes, "imports": list(imports)}
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(settings).encode() + b"\n")
        # A long request does not fit into a pipe while the process is still importing.
        os.set_blocking(process.stdin.fileno(), False)
        return cls(process, pipe, memory_bytes)

    def can_take(self, limits: Limits) -> bool:
        """Return whether the process waits, with these limits."""
        return self.memory_bytes == limits.memory_bytes and self.process.poll() is None

    def result(
        self,
        path: str,
        arguments: Mapping[str, Any] | None,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> Mapping[str, Any]:
        """Return the answer, or `{"text": "Error: ..."}` if the call exceeds a limit or ends without one."""
        assert self.process.stdin is not None
        began = clock()
        unsent, said = json.dumps({"path": path, "arguments": arguments}).encode(), b""
        while not said.endswith(b"\n"):
            inputs = [self.process.stdin] if unsent else []
            answers, room, _ = select.select([self.pipe], inputs, [], LOOK_S)
            if room:
                unsent = self._send(unsent)
            if answers:
                part = os.read(self.pipe, 1 << 16)
                if not part:
                    return _error(f"the tool's process {ended_with(self.process.wait())}")
                said += part
                if len(said) > MOST_ANSWER:
                    return _error(f"the result has more than {MOST_ANSWER >> 20} MiB")
            if (why := verdict(usage(), clock() - began, limits)) is not None:
                return _error(why)
        return self._read(said)

    def close(self) -> None:
        """Forget the process, which has been killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self.pipe)
        self.process.wait()

    def _send(self, data: bytes) -> bytes:
        """Send what the pipe takes now; return the rest. The end of the data closes the pipe."""
        assert self.process.stdin is not None
        try:
            data = data[self.process.stdin.write(data) or 0 :]
        except BrokenPipeError:  # it has ended: seen when its answer is read
            data = b""
        if not data:
            self.process.stdin.close()
        return data

    def _read(self, said: bytes) -> Mapping[str, Any]:
        try:
            facts = dict(json.loads(said))
        except (ValueError, TypeError, RecursionError):
            return _error(FORGED)
        if facts.get("memory"):
            return _error(f"more than {self.memory_bytes >> 20} MiB of memory were needed")
        texts = {key: facts[key] for key in ("text", "refused") if key in facts}
        return texts if all(isinstance(text, str) for text in texts.values()) else _error(FORGED)


def ended_with(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


def _error(text: str) -> dict[str, str]:
    return {"text": f"Error: {text}"}
