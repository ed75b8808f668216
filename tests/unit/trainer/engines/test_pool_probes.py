"""Engines are probed as long as they live, and not while they receive weights."""

import asyncio
from dataclasses import replace

import pytest

from rljob_trainer.metrics import Publication
from support.trainer.engine_pool import EPOCH, PROBE_S, SETTINGS, Engines, Scene, play
from support.trainer.http_answers import Reply

SILENT = Reply(500, "the scheduler does not answer")


def probes(scene: Scene, url: str) -> int:
    return len(scene.http.bodies(f"{url}/server_info"))


def test_every_engine_is_probed_once_in_an_interval_with_its_deadline() -> None:
    async def act(scene: Scene) -> None:
        await asyncio.sleep(3.5 * PROBE_S)
        assert (probes(scene, "a:1"), probes(scene, "b:1")) == (3, 3)
        assert {asked.deadline_s for asked in scene.http.asked} == {SETTINGS.probe_timeout_s}

    play(act)


def test_failed_probes_in_a_row_kill_an_engine_and_count_from_the_last_good_one() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        await asyncio.sleep(1.5 * PROBE_S)
        scene.http.answers["a:1/server_info"] = SILENT
        await asyncio.sleep(2 * PROBE_S)
        assert scene.states() == {"a": "Suspect", "b": "Healthy"}
        assert scene.router.urls == {"http://a:1", "http://b:1"}
        await asyncio.sleep(PROBE_S)
        assert scene.states() == {"a": "Dead", "b": "Healthy"}
        assert scene.router.urls == {"http://b:1"}

    scene = play(act)
    (incident,) = scene.incidents
    assert (scene.causes, incident.error) == (
        ["Unresponsive"],
        "engine a: GET /server_info: 500 the scheduler does not answer",
    )
    assert incident.time == pytest.approx(EPOCH + 4 * PROBE_S)
    assert incident.detect_seconds == pytest.approx(3 * PROBE_S)


def test_an_engine_that_never_answered_counts_from_its_start() -> None:
    async def act(scene: Scene) -> None:
        scene.http.answers["a:1/server_info"] = SILENT
        await asyncio.sleep(3.5 * PROBE_S)

    (incident,) = play(act).incidents
    assert incident.detect_seconds == pytest.approx(3 * PROBE_S)


def test_an_answer_between_two_failed_probes_makes_an_engine_healthy() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        for answer, state in [(SILENT, "Suspect"), (SILENT, "Suspect"), ({}, "Healthy"), (SILENT, "Suspect")]:
            scene.http.answers["a:1/server_info"] = answer
            await asyncio.sleep(PROBE_S)
            assert scene.states()["a"] == state

    play(act)


def test_no_engine_is_probed_while_it_receives_weights() -> None:
    async def act(scene: Scene) -> None:
        async def publish(version: int, engines: Engines) -> Publication:
            await asyncio.sleep(4.5 * PROBE_S)
            return Publication(version, 0.0, ("a", "b"), {})

        scene.http.answers["/server_info"] = SILENT
        await scene.pool.publish(0, publish)
        assert scene.http.asked == []
        assert scene.states() == {"a": "Healthy", "b": "Healthy"}
        await asyncio.sleep(PROBE_S)
        assert scene.states() == {"a": "Suspect", "b": "Suspect"}

    play(act)


def test_no_engine_is_probed_while_the_second_of_two_publications_goes_on() -> None:
    async def act(scene: Scene) -> None:
        async def publish(version: int, engines: Engines) -> Publication:
            await asyncio.sleep(PROBE_S * (0.5 + version))
            return Publication(version, 0.0, ("a", "b"), {})

        await asyncio.gather(scene.pool.publish(0, publish), scene.pool.publish(3, publish))
        assert scene.http.asked == []

    play(act)


def test_a_probe_that_was_under_way_when_a_publication_began_does_not_count() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        asked, answered, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

        def late() -> Reply:
            asked.set()
            return replace(SILENT, until=answered)

        async def publish(version: int, engines: Engines) -> Publication:
            await go_on.wait()
            return Publication(version, 0.0, ("a", "b"), {})

        scene.http.answers["a:1/server_info"] = late
        await asked.wait()
        publication = asyncio.ensure_future(scene.pool.publish(1, publish))
        await asyncio.sleep(1.0)
        answered.set()
        await asyncio.sleep(1.0)
        assert scene.states()["a"] == "Healthy"
        go_on.set()
        await publication

    play(act)


def test_a_dead_engine_and_one_that_was_replaced_are_probed_no_more() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.hosts["a"].crash()
        await scene.until(lambda: scene.states()["a"] == "Dead")
        await asyncio.sleep(3 * PROBE_S)
        assert probes(scene, "a:1") <= 1
        scene.pool.restart("a", 1)
        await asyncio.sleep(3.5 * PROBE_S)
        assert probes(scene, "a:1") <= 1
        assert probes(scene, "a:2") == 3

    play(act)
