"""The sglang-router process and who is listed in it.

The router accepts `POST /workers` at once and lists the worker later, or never: adding and removing therefore poll
until it is so. Its circuit breaker is off: it would count a worker's HTTP 400, which is the request's fault, as the
worker's.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rljob_api.control import ROUTER, Incident
from rljob_api.sections import RouterPolicy
from rljob_trainer.engines.client import EngineError, RouterClient
from rljob_trainer.engines.health import Report, without_log
from rljob_trainer.engines.key import KEY_VARIABLE
from rljob_trainer.processes.kept_process import KeptProcess, ProcessError, ProcessExit
from rljob_trainer.processes.ports import free_ports

log = logging.getLogger(__name__)

READY_S = 300.0
LISTED_S = 20.0
POLL_S = 0.05
SILENT_PROBES = 3
WATCH_S = 1.0
"""slices of waiting for the end of the process; a thread cannot be cancelled"""
POLICIES = {
    RouterPolicy.RANDOM: "random",
    RouterPolicy.ROUND_ROBIN: "round_robin",
    RouterPolicy.CACHE_AWARE: "cache_aware",
}
"""sglang-router's names"""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """What the manifest says about the router."""

    policy: RouterPolicy
    request_timeout_s: float
    health_interval_s: float
    health_timeout_s: float
    keeps_sessions: bool = False
    """whether all requests of a session go to one engine, as long as it serves, instead of `policy`"""

    @property
    def routing(self) -> dict[str, str]:
        """Flags that say which engine gets a request."""
        if not self.keeps_sessions:
            return {"--policy": POLICIES[self.policy]}
        return {"--policy": "manual", "--assignment-mode": "min_group"}  # a new one goes to the engine with the fewest


def router_argv(settings: RouterSettings, host: str, port: int, metrics_port: int) -> list[str]:
    """Return the router's command line."""
    flags: dict[str, str | int] = {
        "--host": host,
        "--port": port,
        "--prometheus-host": host,
        "--prometheus-port": metrics_port,
        **settings.routing,
        "--request-timeout-secs": max(1, round(settings.request_timeout_s)),
        "--worker-startup-timeout-secs": round(LISTED_S),
        "--worker-startup-check-interval": 1,
        "--health-check-interval-secs": max(1, round(settings.health_interval_s)),
        "--health-check-timeout-secs": max(1, round(settings.health_timeout_s)),
        "--retry-max-retries": 3,
        "--log-level": "warn",
    }
    words = [sys.executable, "-m", "rljob_trainer.engines.router_process", "--disable-circuit-breaker"]
    return words + [str(word) for flag in flags.items() for word in flag]


class Router:
    """A router process on this machine. Start it early: it takes many seconds."""

    def __init__(
        self,
        settings: RouterSettings,
        log_file: Path,
        session: aiohttp.ClientSession,
        host: str,
        key: str = "",
        report: Report = lambda incident, cause: None,
    ) -> None:
        """`key`: what its clients and its engines' clients must send; empty: no key is needed.

        `report` gets each failure of the router twice: when it is noticed, and when its successor has its engines.
        """
        self._settings = settings
        self._log_file = log_file
        self._session = session
        self._host = host
        self._key = key
        self._report = report
        self._generation = 0
        self._ports = (0, 0)
        self._process: KeptProcess | None = None
        self.client: RouterClient | None = None

    async def start(self) -> None:
        """Start the process and wait until it answers; raise EngineError."""
        self._ports = free_ports(self._host)
        self.client = RouterClient(self._session, f"http://{self._host}:{self._ports[0]}", self._key)
        await self._start()

    async def keep(self, urls: Callable[[], Sequence[str]]) -> None:
        """For ever: when the process ends, start it again on the same port, with the engines it should list.

        Prompts wait and are asked again meanwhile; a router that never comes back ends in their deadline.
        """
        silent, answered_at = 0, time.time()
        failure: tuple[Incident, str] | None = None
        while True:
            exit_ = await asyncio.to_thread(self._running().wait, WATCH_S)
            if exit_ is None:
                if await self._answers():
                    silent, answered_at = 0, time.time()
                    continue
                silent += 1
                if silent < SILENT_PROBES:
                    continue
                await self.stop()
            log.error("router action=restart reason=%s", exit_ or "no answer")
            silent = 0
            if failure is None:  # one of a successor that does not start is part of it
                failure = self._failed(exit_, answered_at)
                self._report(*failure)
            try:
                await self._start()
                await asyncio.gather(*(self.add(url) for url in urls()))
            except (EngineError, ProcessError, OSError) as error:
                log.error("router action=restart_again reason=%s", error)
                await self.stop()
                continue
            incident, cause = failure
            self._report(incident.model_copy(update={"return_seconds": time.time() - incident.time}), cause)
            failure, answered_at = None, time.time()

    async def add(self, url: str) -> None:
        """List an engine; return when the router sends it requests."""
        assert self.client is not None, "add before start"
        await self.client.add_worker(url)
        deadline = time.monotonic() + LISTED_S
        while not any(worker.url == url and worker.healthy for worker in await self.client.workers()):
            if time.monotonic() > deadline:
                raise EngineError(f"router: add {url}: not listed as healthy within {LISTED_S:g} s")
            await asyncio.sleep(POLL_S)

    async def remove(self, url: str) -> None:
        """Take an engine off the list; return when it is off. One that is not listed is not an error."""
        assert self.client is not None, "remove before start"
        deadline = time.monotonic() + LISTED_S
        while listed := [worker for worker in await self.client.workers() if worker.url == url]:
            for worker in listed:
                await self.client.remove_worker(worker.id)
            if time.monotonic() > deadline:
                raise EngineError(f"router: remove {url}: still listed after {LISTED_S:g} s")
            await asyncio.sleep(POLL_S)

    @property
    def pid(self) -> int:
        """Return the process' pid."""
        return self._running().pid

    async def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)

    def _failed(self, exit_: ProcessExit | None, answered_at: float) -> tuple[Incident, str]:
        """Return what is reported of the process, and its cause in a word."""
        now, generation = time.time(), self._generation
        self._generation += 1
        if exit_ is None:
            cause, error, failed_at = "Unresponsive", f"{SILENT_PROBES} probes in a row failed", answered_at
        else:
            cause, error, failed_at = "ProcessExited", without_log(str(exit_)), exit_.failed_at
        seconds = max(0.0, now - failed_at)
        return Incident(time=now, engine=ROUTER, generation=generation, error=error, detect_seconds=seconds), cause

    async def _answers(self) -> bool:
        return self.client is not None and await self.client.is_alive()

    async def _start(self) -> None:
        argv = router_argv(self._settings, self._host, *self._ports)
        self._process = await asyncio.to_thread(KeptProcess, argv, {KEY_VARIABLE: self._key}, self._log_file)
        assert self.client is not None
        await self._until_alive(self.client, self._process)

    def _running(self) -> KeptProcess:
        assert self._process is not None, "keep before start"
        return self._process

    async def _until_alive(self, client: RouterClient, process: KeptProcess) -> None:
        deadline = time.monotonic() + READY_S
        while not await client.is_alive():
            if process.exit is not None:
                raise EngineError(f"router: start: {process.exit}")
            if time.monotonic() > deadline:
                raise EngineError(f"router: start: no answer within {READY_S:g} s; log:\n{process.log_tail()}")
            await asyncio.sleep(POLL_S)
