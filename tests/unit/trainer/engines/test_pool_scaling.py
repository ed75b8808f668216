"""Engines that come and go while a run goes on, over hosts and a router that only remember."""

import asyncio
from dataclasses import replace

import pytest

from rljob_trainer.metrics import Publication
from support.trainer.engine_pool import SETTINGS, Engines, Scene, play
from support.trainer.http_answers import Reply

LOADS = "b:1/v1/loads?include=core"
RUNNING, WAITING = {"num_running_reqs": 2, "num_waiting_reqs": 0}, {"num_running_reqs": 0, "num_waiting_reqs": 1}


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
        assert scene.happened[-2:] == ["remove http://b:1", "stop b"]
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


def test_an_engine_that_goes_answers_its_last_requests_without_new_ones() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.http.answers[LOADS] = {"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}, RUNNING]}
        scene.pool.scale(1)
        await asyncio.sleep(60.0)
        assert (scene.hosts["b"].left, scene.router.urls) == (0, {"http://a:1"})
        scene.http.answers[LOADS] = {"loads": [WAITING]}
        await asyncio.sleep(60.0)
        assert (scene.hosts["b"].left, scene.router.urls) == (0, {"http://a:1"})
        assert {asked.deadline_s for asked in scene.http.asked if asked.url.endswith(LOADS)} == {5.0}
        await scene.pool.cut()
        assert scene.http.bodies("b:1/abort_request") == [{"abort_all": True}]
        scene.http.answers[LOADS] = {"loads": []}
        await asyncio.sleep(1.0)
        assert scene.hosts["b"].left == 1
        assert scene.happened[-2:] == ["remove http://b:1", "stop b"]

    play(act)


@pytest.mark.parametrize(
    ("answer", "before", "after"),
    [({"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 0}]}, 599.0, 601.0), (Reply(500, "lost"), 0.0, 1.0)],
    ids=["answers no end", "says nothing"],
)
def test_an_engine_that_goes_is_not_waited_for_without_end(answer: object, before: float, after: float) -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.http.answers[LOADS] = answer
        scene.pool.scale(1)
        await asyncio.sleep(before)
        assert scene.hosts["b"].left == 0
        await asyncio.sleep(after - before)
        assert scene.hosts["b"].left == 1

    play(act)


def test_a_dead_engine_that_goes_takes_its_incident_with_it() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.hosts["b"].crash()
        await scene.until(lambda: scene.states()["b"] == "Dead")
        scene.pool.scale(1)
        await scene.until(lambda: "b" not in scene.states())

    (incident,) = play(act).incidents
    assert (incident.engine, incident.return_seconds) == ("b", None)


def test_what_happens_to_an_engine_that_goes_is_no_failure() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.http.answers[LOADS] = {"loads": [RUNNING]}
        scene.pool.scale(1)
        scene.hosts["b"].crash()
        await asyncio.sleep(1.0)
        assert scene.states()["b"] == "Leaving"
        await scene.publish(1)
        assert scene.router.urls == {"http://a:1"}

    assert play(act).incidents == []


def test_engines_of_one_machine_go_together() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.scale(4)
        await scene.until(lambda: list(scene.states().values()) == ["Healthy"] * 4)
        for name, node in [("a", "1"), ("b", "1"), ("engine-0", "2"), ("engine-1", "3")]:
            scene.hosts[name].node = node
        scene.pool.scale(2)
        assert {name for name, state in scene.states().items() if state == "Leaving"} == {"a", "b"}

    play(act, replace(SETTINGS, engines_per_node=2))
