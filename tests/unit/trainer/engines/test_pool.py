"""The pool with hosts and a router that only remember; no server, no HTTP."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_trainer.engines.client import EngineClient, EngineError, open_session
from rljob_trainer.engines.command import EngineCommand
from rljob_trainer.engines.pool import EnginePool, Incident, PoolSettings
from rljob_trainer.engines.process import Exit
from rljob_trainer.engines.server import EngineStartError, Served
from rljob_trainer.metrics import Publication

COMMAND = EngineCommand({}, {})
SETTINGS = PoolSettings(3, probe_interval_s=60.0, probe_timeout_s=1.0, start_timeout_s=1.0)
Engines = Sequence[EngineClient]


class FakeHost:
    def __init__(self, name: str) -> None:
        self.name = name
        self.starts = 0
        self.stops = 0
        self.left = 0
        self.fails: str | None = None
        self.node: str | None = None
        self.url: str | None = None
        self.room = asyncio.Event()
        self.room.set()
        self.ended = asyncio.Event()

    async def start(self, command: EngineCommand, timeout_s: float) -> Served:
        await self.room.wait()
        self.node = "10.0.0.1"
        self.starts += 1
        if self.fails:
            raise EngineStartError(self.fails)
        self.ended = asyncio.Event()
        return Served(self.url or f"http://{self.name}:{self.starts}", pid=self.starts, seconds=0.0)

    async def wait(self) -> Exit:
        await self.ended.wait()
        return Exit("the server ended", -9, failed_at=1.0, log_tail="")

    async def stop(self) -> None:
        self.stops += 1
        self.ended.set()

    async def leave(self) -> None:
        await self.stop()
        self.left += 1


class FakeRouter:
    def __init__(self) -> None:
        self.urls: set[str] = set()
        self.history: list[str] = []

    async def add(self, url: str) -> None:
        self.urls.add(url)
        self.history.append(f"add {url}")

    async def remove(self, url: str) -> None:
        if url not in self.urls:
            raise EngineError(f"{url} is not listed")
        self.urls.discard(url)
        self.history.append(f"remove {url}")


class Scene:
    def __init__(self, pool: EnginePool, hosts: dict[str, FakeHost], router: FakeRouter) -> None:
        self.pool = pool
        self.hosts = hosts
        self.router = router
        self.incidents: list[Incident] = []
        self.version: int | None = None
        self.ahead = False

    async def publish(self, version: int, failed: dict[str, str] | None = None) -> Publication:
        """Publish with every engine verified but those in `failed`."""
        return await self.pool.publish(version, lambda v, engines: self._publish(v, engines, failed or {}))

    async def catch_up(self, engines: Engines) -> Publication | None:
        if self.ahead or self.version is None:
            return None
        return await self._publish(self.version, engines, {})

    async def _publish(self, version: int, engines: Engines, failed: dict[str, str]) -> Publication:
        self.version = version
        verified = tuple(engine.name for engine in engines if engine.name not in failed)
        return Publication(version, 0.0, verified, failed)

    def states(self) -> dict[str, str]:
        return {engine.name: engine.state for engine in self.pool.snapshot()}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                await asyncio.sleep(0.001)


def play(act: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Run a scene with two engines, a and b, that have just started."""

    async def run() -> None:
        hosts, router = {}, FakeRouter()

        def host(name: str) -> FakeHost:
            hosts[name] = FakeHost(name)
            return hosts[name]

        async with open_session() as session:
            scene: Scene
            pool = EnginePool(
                "ab",
                host,
                COMMAND,
                router,
                session,
                SETTINGS,
                catch_up=lambda engines: scene.catch_up(engines),
                on_incident=lambda incident: scene.incidents.append(incident),
            )
            scene = Scene(pool, hosts, router)
            await pool.start()
            await act(scene)
            await pool.stop()

    asyncio.run(run())


def test_engines_that_started_get_no_request_before_the_first_publication() -> None:
    async def act(scene: Scene) -> None:
        assert scene.states() == {"a": "Stale", "b": "Stale"}
        assert not scene.router.urls
        await scene.publish(0)
        assert scene.states() == {"a": "Healthy", "b": "Healthy"}
        assert scene.router.urls == {"http://a:1", "http://b:1"}

    play(act)


def test_an_engine_that_fails_a_publication_leaves_the_router_and_is_killed() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        await scene.publish(1, failed={"a": "1 of 14 tensors differ"})
        assert scene.states() == {"a": "Dead", "b": "Healthy"}
        assert scene.router.urls == {"http://b:1"}
        await scene.until(lambda: scene.hosts["a"].stops == 1)
        scenes.append(scene)

    scenes: list[Scene] = []
    play(act)
    assert [incident.cause for incident in scenes[0].incidents] == ["PublishFailed"]


def test_a_process_that_ends_in_a_publication_is_told_with_its_cause() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        asyncio.get_running_loop().call_later(0.1, scene.hosts["a"].ended.set)
        await scene.publish(1, failed={"a": "connection reset by peer"})
        assert scene.states() == {"a": "Dead", "b": "Healthy"}
        scenes.append(scene)

    scenes: list[Scene] = []
    play(act)
    assert [incident.cause for incident in scenes[0].incidents] == ["ProcessExited"]


def test_a_process_that_ends_is_rerouted_and_told_with_its_cause() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.hosts["a"].ended.set()
        await scene.until(lambda: scene.router.urls == {"http://b:1"})
        (engine, _) = scene.pool.snapshot()
        assert (engine.state, engine.last_error[:24]) == ("Dead", "the server ended with -9")

    play(act)


def test_a_restarted_engine_serves_after_it_has_caught_up() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(3)
        scene.hosts["a"].ended.set()
        await scene.until(lambda: scene.states()["a"] == "Dead")
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: "http://a:2" in scene.router.urls)
        assert scene.states()["a"] == "Healthy"
        assert scene.router.history[-2:] == ["remove http://a:1", "add http://a:2"]
        await scene.until(lambda: len(scene.incidents) == 1)
        assert scene.incidents[0].cause == "ProcessExited"
        assert scene.incidents[0].returned_s is not None

    play(act)


def test_a_restarted_engine_waits_while_the_learner_holds_other_weights() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(3)
        scene.ahead = True
        scene.hosts["a"].ended.set()
        await scene.until(lambda: scene.states()["a"] == "Dead")
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: scene.states()["a"] == "Stale")
        assert scene.router.urls == {"http://b:1"}
        await scene.publish(4)
        assert scene.router.urls == {"http://a:2", "http://b:1"}

    play(act)


def test_asking_twice_for_the_same_generation_restarts_once() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.restart("a", generation=1)
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: "http://a:2" in scene.router.urls)
        scene.pool.restart("a", generation=1)
        assert scene.hosts["a"].starts == 2
        assert scene.pool.snapshot()[0].restarts == 1

    play(act)


def test_an_engine_that_does_not_start_does_not_stop_the_other() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.hosts["a"].fails = "start engine a: no such model"
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: scene.states()["a"] == "Dead")
        assert scene.pool.snapshot()[0].last_error == "start engine a: no such model"
        assert scene.router.urls == {"http://b:1"}

    play(act)


def test_a_failure_that_is_not_over_is_told_when_the_pool_stops() -> None:
    scenes: list[Scene] = []

    async def act(scene: Scene) -> None:
        scenes.append(scene)
        await scene.publish(0)
        scene.hosts["a"].ended.set()
        await scene.until(lambda: scene.router.urls == {"http://b:1"})

    play(act)
    assert [(incident.engine, incident.returned_s) for incident in scenes[0].incidents] == [("a", None)]


def test_when_not_one_engine_starts_the_run_does_not() -> None:
    async def run() -> None:
        host = FakeHost("a")
        host.fails = "start engine a: no such model"
        async with open_session() as session:
            pool = EnginePool(
                "a", lambda _: host, COMMAND, FakeRouter(), session, SETTINGS, _never, lambda incident: None
            )
            await pool.start()

    with pytest.raises(EngineStartError, match="no such model"):
        asyncio.run(run())


def test_an_added_engine_serves_when_it_holds_the_current_weights() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(3)
        scene.pool.scale(3)
        await scene.until(lambda: scene.states().get("engine-0") == "Healthy")
        assert "http://engine-0:1" in scene.router.urls
        (new,) = [each for each in scene.pool.snapshot() if each.name == "engine-0"]
        assert (new.version, new.generation, new.node) == (3, 0, "10.0.0.1")

    play(act)


def test_an_added_engine_gets_no_request_while_the_learner_trains() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(3)
        scene.ahead = True
        scene.pool.scale(3)
        await scene.until(lambda: scene.states().get("engine-0") == "Stale")
        assert scene.router.urls == {"http://a:1", "http://b:1"}
        await scene.publish(4)
        assert "http://engine-0:1" in scene.router.urls

    play(act)


def test_asking_for_the_same_number_again_changes_nothing() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.scale(4)
        scene.pool.scale(4)
        assert set(scene.states()) == {"a", "b", "engine-0", "engine-1"}
        scene.pool.scale(3)
        scene.pool.scale(3)
        assert list(scene.states().values()).count("Leaving") == 1

    play(act)


def test_an_engine_that_goes_leaves_the_router_first_and_gives_its_room_back() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.scale(1)
        assert scene.states()["b"] == "Leaving"
        await scene.until(lambda: "b" not in scene.states())
        assert scene.router.history[-1] == "remove http://b:1"
        assert scene.hosts["b"].left == 1
        publication = await scene.publish(1)
        assert publication.engines == ("a",)
        assert scene.incidents == []

    play(act)


def test_an_engine_does_not_leave_in_the_middle_of_a_publication() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def publish(version: int, engines: Engines) -> Publication:
            arrived.set()
            await go_on.wait()
            return Publication(version, 0.0, tuple(engine.name for engine in engines), {})

        publication = asyncio.ensure_future(scene.pool.publish(1, publish))
        await arrived.wait()
        scene.pool.scale(1)
        await asyncio.sleep(0.5)
        assert scene.hosts["b"].left == 0
        go_on.set()
        assert set((await publication).engines) == {"a", "b"}
        await scene.until(lambda: scene.hosts["b"].left == 1)
        assert scene.router.urls == {"http://a:1"}

    play(act)


def test_engines_that_wait_for_room_go_first_and_at_once() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.scale(3)
        scene.hosts["engine-0"].room.clear()
        scene.pool.scale(2)
        await scene.until(lambda: set(scene.states()) == {"a", "b"})
        assert (scene.hosts["engine-0"].starts, scene.hosts["engine-0"].left) == (0, 1)

    play(act)


def test_generations_count_on_when_a_name_is_used_again() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.scale(3)
        await scene.until(lambda: scene.states().get("engine-0") == "Healthy")
        scene.pool.scale(2)
        await scene.until(lambda: "engine-0" not in scene.states())
        scene.pool.scale(3)
        (again,) = [each for each in scene.pool.snapshot() if each.name == "engine-0"]
        assert (again.generation, again.state) == (1, "Starting")

    play(act)


def test_an_added_engine_that_does_not_start_is_a_failure_like_any_other() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.scale(3)
        scene.hosts["engine-0"].fails = "no memory"
        await scene.until(lambda: scene.states()["engine-0"] == "Dead")
        scene.hosts["engine-0"].fails = None
        scene.pool.restart("engine-0", 1)
        await scene.until(lambda: scene.states()["engine-0"] == "Healthy")

    play(act)


def test_cutting_off_what_runs_reaches_all_that_serve_although_one_does_not_answer() -> None:
    async def act(scene: Scene) -> None:
        asked: list[object] = []

        async def abort(request: web.Request) -> web.Response:
            asked.append(await request.json())
            return web.Response()

        application = web.Application()
        application.router.add_post("/abort_request", abort)
        await scene.publish(0)
        async with TestServer(application) as server:
            scene.hosts["b"].url = str(server.make_url("")).rstrip("/")
            scene.pool.restart("b", 1)
            await scene.until(lambda: [each.generation for each in scene.pool.snapshot()] == [0, 1])
            await scene.until(lambda: set(scene.states().values()) == {"Healthy"})
            await scene.pool.cut()
        assert asked == [{"abort_all": True}]

    play(act)


async def _never(engines: Engines) -> Publication | None:
    return None
