"""The driver's side of gateways: starts their processes beside the router, watches them, opens and closes sessions.

A gateway that ends is started again on the same port. Its sessions are lost with it: closing one says so. While weights
are published, gateways hold what agents ask for, and no session is opened.
"""

import asyncio
import json
import logging
import secrets
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.engines.key import KEY_VARIABLE, with_key
from rljob_trainer.gateway.record import ADMIN_VARIABLE, Opening, Record, Settings, from_json
from rljob_trainer.processes.kept_process import KeptProcess, ProcessError
from rljob_trainer.processes.ports import free_ports

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""agents run on the driver's machine"""
READY_S = 300.0
ASK_S = 60.0
"""for a session to be opened or closed [s]"""
LOOK_S = 1.0
POLL_S = 0.1
SILENT_LOOKS = 30
SESSIONS = 256
"""trajectories at once that one process serves"""
MOST = 8


class GatewayError(RunError, RuntimeError):
    """A gateway does not start, or does not answer."""

    exit = Exit.LOST_PEER


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session as its agent gets it."""

    gateway: "GatewayProcess"
    name: str
    key: str = field(repr=False)

    @property
    def base_url(self) -> str:
        """What a client of OpenAI is made with."""
        return f"{self.gateway.url}/sessions/{self.name}/v1"


def num_gateways(trajectories: int) -> int:
    """Return how many processes serve this number of trajectories at once."""
    return min(MOST, -(-trajectories // SESSIONS))


class GatewayProcess:
    """One process."""

    def __init__(self, settings: Settings, log_file: Path, session: aiohttp.ClientSession, router_key: str) -> None:
        self.open = 0
        """sessions"""
        self.url = ""
        self._settings = settings
        self._log = log_file
        self._session = session
        self._keys = {ADMIN_VARIABLE: secrets.token_hex(), KEY_VARIABLE: router_key}
        self._process: KeptProcess | None = None
        self._serves = False

    async def start(self) -> None:
        """Start the process and wait until it answers. Raises GatewayError and GenerateError."""
        port, _ = free_ports(HOST)
        self.url = f"http://{HOST}:{port}"
        await self._start()

    async def keep(self) -> None:
        """For ever: start the process again when it has ended, or is silent."""
        silent = 0
        while True:
            process = self._process
            exit_ = await asyncio.to_thread(process.wait, LOOK_S) if process is not None else None
            if exit_ is None and process is not None:
                silent = 0 if await self._answers() else silent + 1
                if silent < SILENT_LOOKS:
                    continue
            log.error("gateway action=restart reason=%s", exit_ or "no answer")
            silent = 0
            try:
                await self.stop()
                await self._start()
            except (GatewayError, ProcessError, OSError) as error:
                log.error("gateway action=restart_again reason=%s", error)
                await asyncio.sleep(LOOK_S)

    async def open_session(self, opening: Opening) -> OpenSession:
        """Return a new session. Raises GatewayError."""
        content = await self._ask("POST", "/sessions", asdict(opening))
        return OpenSession(self, content["name"], content["key"])

    async def close_session(self, name: str) -> Record:
        """Return what a session was. Raises GatewayError if the gateway has lost it."""
        return from_json(await self._ask("DELETE", f"/sessions/{name}"))

    async def admit(self, admits: bool, wait_s: float = 0.0) -> bool:
        """Let its requests pass to engines, or hold them; return whether none is there after `wait_s` [s].

        One that does not answer is ended: it must not ask for tokens while weights change, nor hold requests for ever.
        """
        if not self._serves:
            return True
        try:
            return bool((await self._ask("POST", "/gate", {"admits": admits, "wait_s": wait_s}))["is_empty"])
        except GatewayError as error:
            log.error("gateway action=end reason=%s", error)
            await self.stop()
            return True

    async def stop(self) -> None:
        """Kill the process."""
        self._serves = False
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    @property
    def pid(self) -> int | None:
        """Its pid; None: it was not started."""
        return self._process.pid if self._process is not None else None

    async def _start(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        settings = json.dumps(asdict(self._settings))
        argv = [sys.executable, "-m", "rljob_trainer.gateway.process", host, port, settings]
        process = self._process = await asyncio.to_thread(KeptProcess, argv, self._keys, self._log)
        deadline = time.monotonic() + READY_S
        while not await self._answers():
            if process.exit is not None and process.exit.code == Exit.BAD_INPUT:
                raise GenerateError(process.exit.log_tail.strip().rpartition("\n")[2])
            if process.exit is not None:
                raise GatewayError(f"gateway: start: {process.exit}")
            if time.monotonic() > deadline:
                raise GatewayError(f"gateway: start: no answer within {READY_S:g} s; log:\n{process.log_tail()}")
            await asyncio.sleep(POLL_S)
        self._serves = True

    async def _answers(self) -> bool:
        try:
            await self._ask("GET", "/health")
        except GatewayError:
            return False
        return True

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers, timeout = with_key(self._keys[ADMIN_VARIABLE]), aiohttp.ClientTimeout(total=ASK_S)
        wanted = f"gateway: {method} {path.rpartition('/')[0] or path}"
        try:
            async with self._session.request(
                method, self.url + path, json=body, headers=headers, timeout=timeout
            ) as answer:
                content = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise GatewayError(f"{wanted}: {type(error).__name__}: {error}") from error
        if answer.status != 200:
            raise GatewayError(f"{wanted}: {answer.status} {content[:500]!r}")
        return orjson.loads(content)


class Gateways:
    """All processes of a run."""

    def __init__(self, processes: tuple[GatewayProcess, ...]) -> None:
        self.processes = processes
        self._open = asyncio.Event()
        self._open.set()

    async def start(self) -> None:
        """Start all. Raises GatewayError, and GenerateError for a parser that SGLang does not have."""
        await asyncio.gather(*(each.start() for each in self.processes))

    async def keep(self) -> None:
        """For ever: keep all running."""
        await asyncio.gather(*(each.keep() for each in self.processes))

    async def stop(self) -> None:
        """Kill all."""
        await asyncio.gather(*(each.stop() for each in self.processes))

    async def open_session(self, opening: Opening) -> OpenSession:
        """Return a new session of the process that has the fewest. Raises GatewayError."""
        await self._open.wait()
        least = min(self.processes, key=lambda each: each.open)
        session = await least.open_session(opening)
        least.open += 1
        return session

    async def close_session(self, session: OpenSession) -> Record:
        """Return what a session was. Raises GatewayError if its gateway has lost it."""
        session.gateway.open -= 1
        return await session.gateway.close_session(session.name)

    async def close(self) -> None:
        """Have all requests to engines held, and open no session."""
        self._open.clear()
        await asyncio.gather(*(each.admit(False) for each in self.processes))

    async def emptied(self, timeout_s: float | None = None) -> bool:
        """Wait until engines have no request of ours, at most `timeout_s` [s]; return whether that is the case."""
        while True:
            wait_s = LOOK_S if timeout_s is None else timeout_s
            empty = all(await asyncio.gather(*(each.admit(False, wait_s) for each in self.processes)))
            if empty or timeout_s is not None:
                return empty

    async def open(self) -> None:
        """Have requests sent again, those that were held among them."""
        await asyncio.gather(*(each.admit(True) for each in self.processes))
        self._open.set()
