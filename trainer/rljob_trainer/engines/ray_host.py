"""The driver's handle on an engine's Ray actor, see `actor/server.py`.

It makes a new actor when the old one is lost with its machine.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.client import EngineError, EngineUnreachableError
from rljob_trainer.engines.command import EngineCommand
from rljob_trainer.engines.served import EngineStartError, Served
from rljob_trainer.engines.weight_delta import DeltaError
from rljob_trainer.engines.weight_offer import WeightFiles
from rljob_trainer.processes.actor_calls import ask
from rljob_trainer.processes.kept_process import STOP_S, ProcessExit

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

WAIT_SLICE_S = 3600.0


@dataclass(frozen=True, slots=True)
class ActorPlacement:
    """Where an engine's actor runs."""

    options: Mapping[str, Any]
    """Ray's actor options"""
    environment: Mapping[str, str]
    """of the server alone, as the GPUs that it sees"""


class Reservation(Protocol):
    """Resources for one engine: a `placement.EngineReservation`. A protocol for tests, which reserve nothing."""

    async def acquire(self) -> ActorPlacement:
        """Return the placement as soon as the resources are reserved; wait without a limit."""

    def release(self) -> None:
        """Release the resources; nothing runs there any more."""


class RayHost:
    """An `EngineServer` in a separate Ray actor, with its own reservation."""

    def __init__(
        self, name: str, command: EngineCommand, log_file: Path, host: str | None, reservation: Reservation
    ) -> None:
        self._name = name
        self._command = command
        self._log_file = log_file
        self._host = host
        self._reservation = reservation
        self._actor: Any = None
        self._node: str | None = None

    @property
    def node(self) -> str | None:
        """Address of its machine; None: it waits for room."""
        return self._node

    async def start(self, timeout_s: float) -> Served:
        """Start the server, in a new actor when there is none; raise EngineStartError."""
        try:
            self._node = await self._ask(EngineServer.address)
            return await self._ask(EngineServer.start, self._command, timeout_s)
        except RayTaskError as error:
            raise EngineStartError(str(error.cause)) from error
        except RayActorError as error:
            self._actor = None
            raise EngineStartError(f"start engine {self._name}: its actor is lost: {error}") from error

    async def wait(self) -> ProcessExit:
        """Return how the server ended, once it has; losing the actor is losing the server."""
        actor = self._actor
        try:
            while True:
                if (exit_ := await ask(actor, EngineServer.wait, WAIT_SLICE_S)) is not None:
                    return exit_
        except RayActorError as error:
            if self._actor is actor:  # and not already its successor
                self._actor = None
            return ProcessExit("its actor is lost", None, time.time(), str(error))

    async def stop(self) -> None:
        """Kill server and actor."""
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        try:
            async with asyncio.timeout(STOP_S + 5.0):
                await ask(actor, EngineServer.stop)
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
        return await self._receive(EngineServer.apply_delta, files, copy, timeout_s)

    async def copy_whole(self, files: WeightFiles, copy: Path, timeout_s: float) -> int:
        """Copy the whole weights to its machine; return the bytes read. Raises EngineError."""
        return await self._receive(EngineServer.copy_whole, files, copy, timeout_s)

    async def actor_pid(self) -> int:
        """Return the pid of the actor's process, on its own machine."""
        return await self._ask(EngineServer.actor_pid)

    async def _receive(
        self, method: Callable[[EngineServer, WeightFiles, Path], int], files: WeightFiles, copy: Path, timeout_s: float
    ) -> int:
        wanted = f"engine {self._name}: {method.__name__}"
        if self._actor is None:
            raise EngineUnreachableError(f"{wanted}: its actor is lost")
        try:
            async with asyncio.timeout(timeout_s):
                return await ask(self._actor, method, files, copy)
        except RayTaskError as error:
            kind = DeltaError if isinstance(error.cause, DeltaError) else EngineError
            raise kind(f"{wanted}: {error.cause}") from error
        except RayActorError as error:
            raise EngineUnreachableError(f"{wanted}: its actor is lost: {error}") from error
        except TimeoutError as error:
            raise EngineUnreachableError(f"{wanted}: not done within {timeout_s:g} s") from error

    async def _ask(self, method: Callable[Concatenate[EngineServer, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._actor is None:
            # Threads: `stop` and `status` must be answered while `wait` waits.
            placement = await self._reservation.acquire()
            actor_class = ray.remote(EngineServer).options(max_concurrency=4, max_restarts=0, **placement.options)
            self._actor = actor_class.remote(self._name, self._log_file, self._host, placement.environment)
        return await ask(self._actor, method, *args, **kwargs)
