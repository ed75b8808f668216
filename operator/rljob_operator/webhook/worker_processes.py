"""Work on foreign input, in separate processes with limits of time and memory.

A fork has all that the webhook knows at that moment, and nothing of it has to be sent: a snapshot of a large cluster is
megabytes. It does the work of the next moment, and is replaced then, or when it is stuck. What runs there is plain
Python: no event loop, no connection, no lock of another thread.
"""

import asyncio
import gc
import math
import multiprocessing
import os
import resource
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path

AT_ONCE = 2
"""workers at once; the memory of the pod is enough for these"""
CPU_S = 1
"""of one piece of work [s]; the largest good manifest takes a fifth of it"""
WAIT_S = 4.0
"""for an answer, with the wait for a free worker: an API server waits 5 s by default [s]"""
FRESH_S = 1.0
"""for so long a worker knows enough [s]"""
MORE_BYTES = 96 * 2**20
"""that a worker may take on top of what the webhook has"""
LENGTH = 8
"""of the number of bytes that stands before a message [bytes]"""
NO_MEMORY = b""
"""what a worker answers that has reached its limit of memory; work never returns that"""


class TooMuchError(Exception):
    """The work takes more time or memory than it may: it is what is wrong."""


class BusyError(Exception):
    """There was no answer in time, and that need not be the fault of the work."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one piece of work."""

    cpu_s: int = CPU_S
    wait_s: float = WAIT_S
    more_bytes: int = MORE_BYTES


USUAL = Limits()


class Workers:
    """Do at most `at_once` pieces of work at once."""

    def __init__(self, work: Callable[[bytes], bytes], limits: Limits = USUAL, at_once: int = AT_ONCE) -> None:
        """`work` is done in a worker."""
        self._work, self._limits = work, limits
        self._places = asyncio.Semaphore(at_once)
        self._idle: list[Worker] = []

    async def run(self, given: bytes) -> bytes:
        """Return what the work makes of this. Raises TooMuchError or BusyError."""
        try:
            async with asyncio.timeout(self._limits.wait_s), self._places:
                worker = self._idle.pop() if self._idle else Worker(self._work, self._limits)
                try:
                    answer = await worker.asked(given)
                except BaseException:
                    worker.end()
                    raise
        except TimeoutError as error:
            raise BusyError(f"no answer within {self._limits.wait_s:g} s") from error
        self._idle.append(worker)
        asyncio.get_running_loop().call_at(worker.born + FRESH_S, self._retire, worker)
        return answer

    def close(self) -> None:
        """End all workers that have no work."""
        while self._idle:
            self._idle.pop().end()

    def _retire(self, worker: "Worker") -> None:
        if worker in self._idle:
            self._idle.remove(worker)
            worker.end()


class Worker:
    """One worker, for one piece of work at a time."""

    def __init__(self, work: Callable[[bytes], bytes], limits: Limits) -> None:
        self.born = asyncio.get_running_loop().time()
        self._limits = limits
        self._socket, its = socket.socketpair()
        self._process: ForkProcess = multiprocessing.get_context("fork").Process(
            target=_serve, args=(work, its, limits), daemon=True
        )
        self._process.start()
        its.close()
        self._socket.setblocking(False)

    async def asked(self, given: bytes) -> bytes:
        """Return the worker's answer. Raises TooMuchError or BusyError; the worker is of no use then."""
        loop, before = asyncio.get_running_loop(), self._cpu_s()
        too_long = TooMuchError(f"it takes longer than {self._limits.cpu_s} s to check")
        try:
            await loop.sock_sendall(self._socket, len(given).to_bytes(LENGTH) + given)
            answer = await self._received(int.from_bytes(await self._received(LENGTH)))
        except asyncio.CancelledError as error:  # of a busy machine, where a second of work takes several
            if self._cpu_s() - before > self._limits.cpu_s / 2:
                raise too_long from error
            raise
        except (EOFError, ConnectionError) as error:
            self._process.join()
            if self._process.exitcode == -signal.SIGXCPU:
                raise too_long from error
            raise BusyError(f"the worker has ended with {self._process.exitcode}") from error
        if answer == NO_MEMORY:
            raise TooMuchError(f"it takes more than {self._limits.more_bytes // 2**20} MiB of memory to check")
        return answer

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.join()
        self._process.close()

    async def _received(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = await asyncio.get_running_loop().sock_recv(self._socket, size - len(parts))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _cpu_s(self) -> float:
        """Return how long the worker has worked [s]."""
        _, _, numbers = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")
        user, system = numbers.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _serve(work: Callable[[bytes], bytes], pipe: socket.socket, limits: Limits) -> None:
    """Work until the webhook is gone, or ends this process."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the handlers write into the webhook's own event loop
        signal.signal(number, signal.SIG_DFL)
    os.closerange(3, pipe.fileno())  # connections that the webhook closes shall be closed
    os.closerange(pipe.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    gc.freeze()  # a collection would touch, and so copy, all that the webhook has
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = _address_space() + limits.more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while head := pipe.recv(LENGTH, socket.MSG_WAITALL):
        given = pipe.recv(int.from_bytes(head), socket.MSG_WAITALL)
        used = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(used.ru_utime + used.ru_stime) + limits.cpu_s
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        try:
            answer = work(given)
        except MemoryError:
            answer = NO_MEMORY
        pipe.sendall(len(answer).to_bytes(LENGTH) + answer)
    os._exit(0)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
