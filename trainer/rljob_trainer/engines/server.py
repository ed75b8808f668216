"""One SGLang server on the machine of this process. `EngineServer` is what runs inside a Ray actor; `RayHost` is its
handle in the driver, which makes a new actor when the old one is lost with its machine.
"""

import asyncio
import logging
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rljob_trainer.engines import weight_copy
from rljob_trainer.engines.client import EngineError, EngineUnreachableError
from rljob_trainer.engines.command import EngineCommand
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.engines.weight_copy import WeightFiles
from rljob_trainer.engines.weight_delta import DeltaError
from rljob_trainer.processes import kernel_archive
from rljob_trainer.processes.kept_process import STOP_S, Exit, KeptProcess
from rljob_trainer.processes.ports import free_ports

log = logging.getLogger(__name__)

READY_POLL_S = 0.25
PORT_TRIES = 3
WAIT_SLICE_S = 3600.0
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""a proxy of the machine is for the world outside, not for its own servers"""
IN_USE = ("address already in use", "Port is already in use", "is not available")


class EngineStartError(RuntimeError):
    """An engine did not become ready; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers."""

    url: str
    pid: int
    seconds: float
    """from the order to the first healthy answer [s]"""


class EngineServer:
    """Starts, watches and stops one SGLang server. Everything blocks; nothing outlives this process."""

    def __init__(
        self, name: str, log_file: Path, host: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._log_file = log_file
        self._host = host or ray.util.get_node_ip_address()
        self._environment = dict(environment or {})
        self._process: KeptProcess | None = None

    def start(self, command: EngineCommand, timeout_s: float) -> Served:
        """Start the server and wait until it answers; raise EngineStartError, with nothing left running."""
        self.stop()
        started = time.monotonic()
        kernels = kernel_archive.kernels_of(os.environ, command.kernels)
        kernels.unpack()
        for attempt in range(1, PORT_TRIES + 1):
            port, nccl_port = free_ports(self._host)
            process = KeptProcess(
                command.argv(sys.executable, self._host, port, nccl_port),
                {**command.environment, **self._environment, KEY_VARIABLE: command.key},
                self._log_file,
            )
            self._process = process
            url = f"http://{self._host}:{port}"
            trouble = _wait_ready(process, url, started + timeout_s, demands_key=command.key != "")
            if trouble is None:
                kernels.pack_soon()
                return Served(url, process.pid, time.monotonic() - started)
            self.stop()
            if attempt == PORT_TRIES or not any(words in trouble for words in IN_USE):
                break
            log.info("engine=%s action=start_again reason=PortConflict port=%d", self._name, port)
        kernels.discard()
        raise EngineStartError(f"start engine {self._name}: {trouble}")

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the server ended, or None when it still runs after `timeout_s` [s]."""
        assert self._process is not None, "wait before start"
        return self._process.wait(timeout_s)

    def status(self) -> tuple[int | None, Exit | None]:
        """Return the server's pid (None before the first start) and how it ended (None while it runs)."""
        return (self._process.pid, self._process.exit) if self._process else (None, None)

    def stop(self) -> None:
        """Kill the server's whole tree, if there is one."""
        if self._process is not None:
            self._process.stop()

    def log_tail(self) -> str:
        """Return the last lines of the server's log."""
        return self._process.log_tail() if self._process else ""

    def apply_delta(self, files: WeightFiles, copy: Path) -> int:
        """Bring this machine's copy of the weights up to date, see `weight_copy`."""
        return weight_copy.apply_delta(files, copy)

    def copy_whole(self, files: WeightFiles, copy: Path) -> int:
        """Copy the whole weights to this machine, see `weight_copy`."""
        return weight_copy.copy_whole(files, copy)

    def actor_pid(self) -> int:
        """Return the pid of this process."""
        return os.getpid()

    def address(self) -> str:
        """Return the address of this machine."""
        return self._host


@dataclass(frozen=True, slots=True)
class ActorPlacement:
    """Where an engine's actor runs."""

    options: Mapping[str, Any]
    """Ray's actor options"""
    environment: Mapping[str, str]
    """of the server alone, as the GPUs that it sees"""


class Reservation(Protocol):
    """Resources for one engine, see `placement.EngineReservation`."""

    async def acquire(self) -> ActorPlacement:
        """Return the placement as soon as the resources are reserved; wait without a limit."""

    def release(self) -> None:
        """Release the resources; nothing runs there any more."""


class RayHost:
    """An `EngineServer` in a Ray actor of its own, with a reservation of its own."""

    def __init__(self, name: str, log_file: Path, host: str | None, reservation: Reservation) -> None:
        self._name = name
        self._log_file = log_file
        self._host = host
        self._reservation = reservation
        self._actor: Any = None
        self._node: str | None = None

    @property
    def node(self) -> str | None:
        """Address of its machine; None: it waits for room."""
        return self._node

    async def start(self, command: EngineCommand, timeout_s: float) -> Served:
        """Start the server, in a new actor when there is none; raise EngineStartError."""
        try:
            self._node = await self._ask("address")
            return await self._ask("start", command, timeout_s)  # type: ignore[no-any-return]  # Ray's calls are untyped
        except RayTaskError as error:
            raise EngineStartError(str(error.cause)) from error
        except RayActorError as error:
            self._actor = None
            raise EngineStartError(f"start engine {self._name}: its actor is lost: {error}") from error

    async def wait(self) -> Exit:
        """Return how the server ended, once it has; losing the actor is losing the server."""
        actor = self._actor
        try:
            while True:
                if (exit_ := await actor.wait.remote(WAIT_SLICE_S)) is not None:
                    return exit_  # type: ignore[no-any-return]  # Ray's calls are untyped
        except RayActorError as error:
            if self._actor is actor:  # and not already its successor
                self._actor = None
            return Exit("its actor is lost", None, time.time(), str(error))

    async def stop(self) -> None:
        """Kill server and actor."""
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        try:
            async with asyncio.timeout(STOP_S + 5.0):
                await actor.stop.remote()
        except (RayError, TimeoutError) as error:
            log.info("engine=%s action=stop reason=%s detail=%s", self._name, type(error).__name__, error)
        finally:
            ray.kill(actor)

    async def leave(self) -> None:
        """Kill server and actor, and release their resources."""
        await self.stop()
        self._reservation.release()

    async def apply_delta(self, files: WeightFiles, copy: Path, timeout_s: float) -> int:
        """Bring the copy on its machine up to date; return the bytes read. Raises DeltaError and EngineError."""
        return await self._receive("apply_delta", files, copy, timeout_s)

    async def copy_whole(self, files: WeightFiles, copy: Path, timeout_s: float) -> int:
        """Copy the whole weights to its machine; return the bytes read. Raises EngineError."""
        return await self._receive("copy_whole", files, copy, timeout_s)

    async def actor_pid(self) -> int:
        """Return the pid of the actor's process, on its own machine."""
        return int(await self._ask("actor_pid"))

    async def _receive(self, method: str, files: WeightFiles, copy: Path, timeout_s: float) -> int:
        wanted = f"engine {self._name}: {method}"
        if self._actor is None:
            raise EngineUnreachableError(f"{wanted}: its actor is lost")
        try:
            async with asyncio.timeout(timeout_s):
                return int(await getattr(self._actor, method).remote(files, copy))
        except RayTaskError as error:
            kind = DeltaError if isinstance(error.cause, DeltaError) else EngineError
            raise kind(f"{wanted}: {error.cause}") from error
        except RayActorError as error:
            raise EngineUnreachableError(f"{wanted}: its actor is lost: {error}") from error
        except TimeoutError as error:
            raise EngineUnreachableError(f"{wanted}: not done within {timeout_s:g} s") from error

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            # Threads: `stop` and `status` must be answered while `wait` waits.
            placement = await self._reservation.acquire()
            actor_class = ray.remote(EngineServer).options(max_concurrency=4, max_restarts=0, **placement.options)
            self._actor = actor_class.remote(self._name, self._log_file, self._host, placement.environment)
        return await getattr(self._actor, method).remote(*arguments)


def _wait_ready(process: KeptProcess, url: str, deadline: float, demands_key: bool) -> str | None:
    """Return None when the server answers, or what is wrong with it."""
    while time.monotonic() < deadline:
        if (exit_ := process.wait(READY_POLL_S)) is not None:
            return str(exit_)
        try:
            with NO_PROXY.open(f"{url}/health", timeout=2.0):
                pass
            return "it serves requests without the key of the run" if demands_key and _serves_anybody(url) else None
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            continue
    return f"not ready in time; log:\n{process.log_tail()}"


def _serves_anybody(url: str) -> bool:
    """Return whether it answers without a key: SGLang goes on where a plugin cannot be applied."""
    try:
        with NO_PROXY.open(f"{url}/model_info", timeout=2.0):
            return True
    except urllib.error.HTTPError as error:
        return error.code != HTTPStatus.UNAUTHORIZED
