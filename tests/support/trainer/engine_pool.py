"""An engine pool over hosts, engines and a router that only remember. No server, no socket, no real time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

from rljob_api.control import Incident
from rljob_trainer.engines.client import EngineClient, EngineError
from rljob_trainer.engines.health import Health
from rljob_trainer.engines.pool import EnginePool, PoolSettings
from rljob_trainer.engines.served import EngineStartError, Served
from rljob_trainer.metrics import Publication
from rljob_trainer.processes.kept_process import ProcessExit
from support.trainer import virtual_time
from support.trainer.http_answers import HttpAnswers

KEY = "a key"
EPOCH = 1_700_000_000.0
"""unix time when the loop's clock says 0 [s]"""
PROBE_S = 10.0
SETTINGS = PoolSettings(3, probe_interval_s=PROBE_S, probe_timeout_s=1.5, start_timeout_s=90.0)
Engines = Sequence[EngineClient]


def now() -> float:
    """Return unix time by the running loop's clock, which has not begun before there is a loop."""
    try:
        return EPOCH + asyncio.get_running_loop().time()
    except RuntimeError:
        return EPOCH


class FakeHost:
    def __init__(self, name: str, happened: list[str]) -> None:
        self.name = name
        self.happened = happened
        self.starts = 0
        self.stops = 0
        self.left = 0
        self.fails: str | None = None
        self.node: str | None = None
        self.timeout_s: float | None = None
        self.room = asyncio.Event()
        self.room.set()
        self.ended = asyncio.Event()
        self.failed_at = 0.0

    async def start(self, timeout_s: float) -> Served:
        await self.room.wait()
        self.node = "10.0.0.1"
        self.starts += 1
        self.timeout_s = timeout_s
        self.happened.append(f"start {self.name}")
        if self.fails:
            raise EngineStartError(self.fails)
        self.ended = asyncio.Event()
        return Served(f"http://{self.name}:{self.starts}", pid=self.starts, seconds=0.0)

    async def wait(self) -> ProcessExit:
        await self.ended.wait()
        return ProcessExit("the server ended", -9, failed_at=self.failed_at, log_tail="")

    async def stop(self) -> None:
        self.stops += 1
        self.happened.append(f"stop {self.name}")
        self.ended.set()

    async def leave(self) -> None:
        await self.stop()
        self.left += 1

    def crash(self) -> None:
        """End the server by itself, now."""
        self.failed_at = now()
        self.ended.set()


class FakeRouter:
    def __init__(self, happened: list[str]) -> None:
        self.urls: set[str] = set()
        self.happened = happened
        self.refuses: set[str] = set()
        """urls that it neither adds nor removes"""

    async def add(self, url: str) -> None:
        if url in self.refuses:
            raise EngineError(f"router: cannot add {url}")
        self.urls.add(url)
        self.happened.append(f"add {url}")

    async def remove(self, url: str) -> None:
        if url not in self.urls or url in self.refuses:
            raise EngineError(f"{url} is not listed")
        self.urls.discard(url)
        self.happened.append(f"remove {url}")


class Scene:
    """A pool, what it acts on, and what happened in which order."""

    def __init__(self, settings: PoolSettings = SETTINGS) -> None:
        self.happened: list[str] = []
        self.hosts: dict[str, FakeHost] = {}
        self.router = FakeRouter(self.happened)
        self.http = HttpAnswers({"/v1/loads?include=core": {"loads": []}}, key=KEY)
        self.incidents: list[Incident] = []
        self.causes: list[str] = []
        self.version: int | None = None
        self.held: dict[str, int] = {}
        """by the url of a process: the weights that it was verified to hold"""
        self.ahead = False
        self.defect: Exception | None = None
        """raised by whatever catches up"""
        self.pool = EnginePool(
            "ab",
            self._host,
            lambda name: Health(name, self._report, now),
            lambda name, url: EngineClient(cast(Any, self.http), name, url, KEY),
            self.router,
            settings,
            self.catch_up,
        )

    async def publish(self, version: int, failed: dict[str, str] | None = None) -> Publication:
        """Publish with every engine verified but those in `failed`."""
        return await self.pool.publish(version, lambda v, engines: self._publish(v, engines, failed or {}))

    async def catch_up(self, engines: Engines) -> Publication | None:
        if self.defect is not None:
            raise self.defect
        if self.ahead or self.version is None:
            return None
        return await self._publish(self.version, engines, {})

    async def _publish(self, version: int, engines: Engines, failed: dict[str, str]) -> Publication:
        self.version = version
        self.held |= {engine.url: version for engine in engines if engine.name not in failed}
        verified = tuple(engine.name for engine in engines if engine.name not in failed)
        reasons = {engine.name: failed[engine.name] for engine in engines if engine.name in failed}
        return Publication(version, 0.0, verified, reasons)

    def states(self) -> dict[str, str]:
        return {engine.name: engine.state for engine in self.pool.snapshot()}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                await asyncio.sleep(0.001)

    def _report(self, incident: Incident, cause: str) -> None:
        self.incidents.append(incident)
        self.causes.append(cause)

    def _host(self, name: str) -> FakeHost:
        self.hosts[name] = FakeHost(name, self.happened)
        return self.hosts[name]


def play(act: Callable[[Scene], Coroutine[Any, Any, None]], settings: PoolSettings = SETTINGS) -> Scene:
    """Run a scene with two engines, a and b, that have just started; return it when the pool has stopped."""

    async def run() -> Scene:
        scene = Scene(settings)
        await scene.pool.start()
        await act(scene)
        await scene.pool.stop()
        return scene

    return virtual_time.run(run())
