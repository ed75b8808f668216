"""The driver's side of gateways: starts their processes beside the router, watches them, opens and closes sessions.

A gateway that ends is started again on the same socket, which is the driver's: clients wait in its queue meanwhile. It
finds its sessions in the directory of the one before. While weights are published, gateways hold what agents ask for,
and no session is opened.
"""

import asyncio
import json
import logging
import secrets
import shutil
import socket
import sys
import tempfile
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
from rljob_trainer.gateway.record import ADMIN_VARIABLE, BACKLOG, Opening, Record, Settings, from_json
from rljob_trainer.processes.kept_process import KeptProcess, ProcessError

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
"""agents run on the driver's machine"""
READY_S = 300.0
ASK_S = 60.0
"""for a session to be opened or closed [s]"""
LOOK_S = 1.0
HEALTH_S = 2.0
"""for a sign of life; without a gateway a connection waits [s]"""
POLL_S = 0.1
SILENT_LOOKS = 30
SESSIONS, FEWER = 256, 64
"""trajectories at once that one process serves at most, and where there are cores for more processes"""
MOST = 8


class GatewayError(RunError, RuntimeError):
    """A gateway does not start, or does not answer."""

    exit = Exit.LOST_PEER


class GatewayGoneError(GatewayError):
    """No answer came: the gateway has ended, or hangs."""


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


def num_gateways(trajectories: int, cores: int) -> int:
    """Return how many processes serve this number of trajectories at once, on a machine with this number of cores.

    Agents of a step begin together, and a process answers one request after the other. It needs two cores, as its texts
    are made in a separate process.
    """
    return min(MOST, max(-(-trajectories // SESSIONS), min(-(-trajectories // FEWER), cores // 2)))


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
        self._listening: socket.socket | None = None
        self._directory: Path | None = None
        self._serves, self._admits = False, True
        self._telling = asyncio.Lock()

    async def start(self) -> None:
        """Start the process and wait until it answers. Raises GatewayError and GenerateError."""
        self._listening = socket.create_server((HOST, 0), backlog=BACKLOG)
        self._directory = Path(tempfile.mkdtemp(prefix="rljob-sessions-"))
        self.url = f"http://{HOST}:{self._listening.getsockname()[1]}"
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
        content = await self._ask_again("POST", "/sessions", asdict(opening))
        return OpenSession(self, content["name"], content["key"])

    async def record(self, name: str) -> Record:
        """Return what a session is so far. Raises GatewayError if the gateway has lost it."""
        return from_json(await self._ask_again("GET", f"/sessions/{name}"))

    async def close_session(self, name: str) -> Record:
        """Return what a session was. Raises GatewayError if the gateway has lost it."""
        record = await self.record(name)
        try:
            await self._ask_again("DELETE", f"/sessions/{name}")
        except GatewayError as error:  # it is forgotten in its time
            log.info("gateway action=close_late reason=%s", error)
        return record

    async def admit(self, admits: bool, wait_s: float = 0.0) -> bool:
        """Let its requests pass to engines, or hold them; return whether none is there after `wait_s` [s].

        One that does not answer is ended: it must not ask for tokens while weights change, nor hold requests for ever.
        One that starts holds them until it is told.
        """
        self._admits = admits
        async with self._telling:
            if not self._serves or (self._process is not None and self._process.exit is not None):
                return True
            wanted = {"admits": self._admits, "wait_s": wait_s}
            try:
                return bool((await self._ask("POST", "/gate", wanted))["is_empty"])
            except GatewayError as error:
                log.error("gateway action=end reason=%s", error)
                await self.stop()
                return True

    async def stop(self) -> None:
        """Kill the process."""
        self._serves = False
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    async def close(self) -> None:
        """Kill the process, and remove the sessions."""
        await self.stop()
        listening, directory = self._listening, self._directory
        self._listening = self._directory = None
        if listening is not None:
            listening.close()
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """Its pid; None: it was not started."""
        return self._process.pid if self._process is not None else None

    async def _start(self) -> None:
        if self._listening is None:
            raise GatewayError("gateway: start: it was closed")
        settings, handed = json.dumps(asdict(self._settings)), self._listening.fileno()
        argv = [sys.executable, "-m", "rljob_trainer.gateway.process", str(handed), str(self._directory), settings]
        process = self._process = await asyncio.to_thread(KeptProcess, argv, self._keys, self._log, (handed,))
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
        await self.admit(self._admits)

    async def _answers(self) -> bool:
        try:
            await self._ask("GET", "/health", timeout_s=HEALTH_S)
        except GatewayError:
            return False
        return True

    async def _ask_again(self, method: str, path: str, body: Any = None) -> Any:
        """As `_ask`, again and again until a gateway that has ended should be back."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                return await self._ask(method, path, body)
            except GatewayGoneError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)

    async def _ask(self, method: str, path: str, body: Any = None, timeout_s: float = ASK_S) -> Any:
        headers, timeout = with_key(self._keys[ADMIN_VARIABLE]), aiohttp.ClientTimeout(total=timeout_s)
        wanted = f"gateway: {method} {path.rpartition('/')[0] or path}"
        try:
            async with self._session.request(
                method, self.url + path, json=body, headers=headers, timeout=timeout
            ) as answer:
                content = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise GatewayGoneError(f"{wanted}: {type(error).__name__}: {error}") from error
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
        """Kill all, and remove their sessions."""
        await asyncio.gather(*(each.close() for each in self.processes))

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
