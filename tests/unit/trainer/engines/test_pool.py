"""Engines in and out of service, over hosts and a router that only remember."""

import asyncio

import pytest

from rljob_api.control import EngineState, EngineStatus
from rljob_trainer.engines import memory
from rljob_trainer.engines.served import EngineStartError
from rljob_trainer.metrics import Publication
from support.trainer import virtual_time
from support.trainer.engine_pool import EPOCH, SETTINGS, Engines, Scene, play
from support.trainer.http_answers import Reply


def test_engines_that_started_get_no_request_before_the_first_publication() -> None:
    async def act(scene: Scene) -> None:
        assert scene.states() == {"a": "Stale", "b": "Stale"}
        assert not scene.router.urls
        assert scene.pool.serving_urls() == ()
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

    assert play(act).causes == ["PublishFailed"]


def test_a_process_that_ends_in_a_publication_is_reported_with_its_cause() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        asyncio.get_running_loop().call_later(0.1, scene.hosts["a"].crash)
        began = asyncio.get_running_loop().time()
        await scene.publish(1, failed={"a": "connection reset by peer"})
        assert scene.states() == {"a": "Dead", "b": "Healthy"}
        assert asyncio.get_running_loop().time() - began < 0.5

    assert play(act).causes == ["ProcessExited"]


def test_a_process_that_ends_is_rerouted_and_reported_with_its_cause() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.hosts["a"].crash()
        await scene.until(lambda: scene.router.urls == {"http://b:1"})
        (engine, _) = scene.pool.snapshot()
        assert (engine.state, engine.last_error) == ("Dead", "the server ended with -9")

    play(act)


def test_a_restarted_engine_serves_after_it_has_caught_up() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(3)
        scene.hosts["a"].crash()
        await scene.until(lambda: scene.states()["a"] == "Dead")
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: "http://a:2" in scene.router.urls)
        assert scene.states()["a"] == "Healthy"
        assert [each for each in scene.happened if "http://a" in each][-2:] == ["remove http://a:1", "add http://a:2"]
        await scene.until(lambda: len(scene.incidents) == 1)
        assert scene.causes == ["ProcessExited"]
        assert scene.incidents[0].return_seconds is not None

    play(act)


def test_a_restarted_engine_waits_while_the_learner_holds_other_weights() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(3)
        scene.ahead = True
        scene.hosts["a"].crash()
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
        scene.pool.restart("a", generation=3)
        assert scene.pool.snapshot()[0].restarts == 2

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


def test_a_failure_that_is_not_over_is_reported_when_the_pool_stops() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.hosts["a"].crash()
        await scene.until(lambda: scene.router.urls == {"http://b:1"})

    assert [(incident.engine, incident.return_seconds) for incident in play(act).incidents] == [("a", None)]


def test_when_not_one_engine_starts_the_run_does_not() -> None:
    async def run() -> None:
        scene = Scene()
        for host in scene.hosts.values():
            host.fails = f"start engine {host.name}: no such model"
        await scene.pool.start()

    with pytest.raises(EngineStartError, match=r"^start engine a: no such model\nstart engine b: no such model$"):
        virtual_time.run(run())


def test_a_publication_to_a_process_that_was_replaced_meanwhile_verifies_nothing() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.ahead = True
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def publish(version: int, engines: Engines) -> Publication:
            arrived.set()
            await go_on.wait()
            return Publication(version, 0.0, ("a", "b"), {})

        publication = asyncio.ensure_future(scene.pool.publish(1, publish))
        await arrived.wait()
        scene.pool.restart("a", 1)
        await scene.until(lambda: scene.states()["a"] == "Stale")
        go_on.set()
        await publication
        assert scene.states() == {"a": "Stale", "b": "Healthy"}
        assert scene.router.urls == {"http://b:1"}

    play(act)


def test_a_failure_in_a_publication_does_not_touch_the_process_that_came_after() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)

        async def publish(version: int, engines: Engines) -> Publication:
            scene.pool.restart("a", 1)
            await scene.until(lambda: scene.hosts["a"].starts == 2)
            return Publication(version, 0.0, ("b",), {"a": "connection reset by peer"})

        scene.ahead = True
        await scene.pool.publish(1, publish)
        assert scene.states() == {"a": "Stale", "b": "Healthy"}

    assert play(act).incidents == []


def test_a_dead_engine_leaves_the_router_before_what_is_left_of_it_is_killed() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0, failed={"a": "1 of 14 tensors differ"})
        await scene.publish(1)
        scene.hosts["b"].crash()
        await scene.until(lambda: scene.hosts["b"].stops == 1)
        assert scene.happened[-2:] == ["remove http://b:1", "stop b"]

    play(act)


def test_a_restarted_engine_leaves_the_router_before_its_process_is_replaced() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.pool.restart("a", 1)
        await scene.until(lambda: "http://a:2" in scene.router.urls)
        assert scene.happened[-4:] == ["remove http://a:1", "stop a", "start a", "add http://a:2"]

    play(act)


def test_an_engine_that_misses_a_version_gets_no_request() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        await scene.pool.publish(1, lambda version, engines: only(version, "a"))
        assert scene.states() == {"a": "Healthy", "b": "Stale"}
        assert scene.router.urls == {"http://a:1"}

    async def only(version: int, name: str) -> Publication:
        return Publication(version, 0.0, (name,), {})

    play(act)


def test_an_engine_that_the_router_does_not_take_is_dead() -> None:
    async def act(scene: Scene) -> None:
        scene.router.refuses = {"http://a:1"}
        await scene.publish(0)
        (engine, _) = scene.pool.snapshot()
        assert (engine.state, engine.last_error) == ("Dead", "router: cannot add http://a:1")

    assert play(act).causes == ["StartFailed"]


def test_an_engine_that_the_router_does_not_let_go_is_killed_all_the_same() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.router.refuses = {"http://a:1"}
        scene.hosts["a"].crash()
        await scene.until(lambda: scene.hosts["a"].stops == 1)
        assert scene.pool.serving_urls() == ("http://a:1", "http://b:1")

    play(act)


def test_engines_start_with_the_time_limit_of_the_pool() -> None:
    async def act(scene: Scene) -> None:
        assert [host.timeout_s for host in scene.hosts.values()] == [SETTINGS.start_timeout_s] * 2

    play(act)


def test_a_snapshot_describes_each_engine() -> None:
    async def act(scene: Scene) -> None:
        await asyncio.sleep(5.0)
        await scene.publish(3)
        await asyncio.sleep(20.0)
        scene.pool.restart("b", 4)
        starting = scene.pool.snapshot()[1]
        await scene.until(lambda: scene.states()["b"] == "Healthy")
        a, b = scene.pool.snapshot()
        healthy = EngineStatus(name="a", state=EngineState.HEALTHY, since=EPOCH + 5.0, version=3, node="10.0.0.1")
        successor = {"name": "b", "since": b.since, "generation": 4, "restarts": 1}
        assert a == healthy.model_copy(update={"url": "http://a:1", "pid": 1})
        assert b == healthy.model_copy(update={**successor, "url": "http://b:2", "pid": 2})
        assert b.since == pytest.approx(EPOCH + 25.0, abs=0.1)
        assert (starting.state, starting.version) == ("Starting", None)

    play(act)


def test_an_incident_says_when_it_was_noticed_rerouted_and_over() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        await asyncio.sleep(100.0 - asyncio.get_running_loop().time())
        scene.hosts["a"].failed_at = EPOCH + 97.0
        scene.hosts["a"].ended.set()
        await asyncio.sleep(20.0)
        scene.pool.restart("a", 1)
        await scene.until(lambda: scene.states()["a"] == "Healthy")

    scene = play(act)
    (incident,) = scene.incidents
    assert (incident.engine, incident.generation, scene.causes) == ("a", 0, ["ProcessExited"])
    assert incident.error == "the server ended with -9", "without its log"
    assert incident.time == pytest.approx(EPOCH + 100.0)
    assert incident.detect_seconds == pytest.approx(3.0)
    assert incident.reroute_seconds == pytest.approx(0.0)
    assert incident.return_seconds == pytest.approx(20.0, abs=0.1)


def test_a_second_failure_before_the_return_belongs_to_the_first_incident() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.hosts["a"].crash()
        await scene.until(lambda: scene.states()["a"] == "Dead")
        scene.hosts["a"].fails = "no memory"
        scene.pool.restart("a", 1)
        await scene.until(lambda: scene.states()["a"] == "Dead")
        assert scene.pool.snapshot()[0].last_error == "no memory"
        scene.hosts["a"].fails = None
        scene.pool.restart("a", 2)
        await scene.until(lambda: scene.states()["a"] == "Healthy")

    scene = play(act)
    assert ([incident.generation for incident in scene.incidents], scene.causes) == ([0], ["ProcessExited"])


def test_a_publish_failure_has_no_time_of_failure() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0, failed={"a": "1 of 14 tensors differ"})

    (incident,) = play(act).incidents
    assert (incident.error, incident.detect_seconds) == ("1 of 14 tensors differ", None)


def test_no_process_is_left_when_the_pool_has_stopped() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)

    scene = play(act)
    assert {name: host.stops for name, host in scene.hosts.items()} == {"a": 1, "b": 1}
    assert scene.incidents == []


def test_an_end_of_what_runs_reaches_all_that_serve_although_one_does_not_answer() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        await scene.pool.publish(1, lambda version, engines: scene._publish(version, engines[:1], {}))
        scene.http.answers["a:1/abort_request"] = Reply(500, "overloaded")
        await scene.pool.cut()
        assert [(asked.url, asked.deadline_s) for asked in scene.http.asked] == [("http://a:1/abort_request", 5.0)]
        await scene.publish(2)
        await scene.pool.cut()
        assert scene.http.bodies("b:1/abort_request") == [{"abort_all": True}]

    play(act)


def test_memory_is_handed_over_by_the_engines_that_serve() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        await scene.pool.hold(memory.NOTHING)
        await scene.pool.hold(memory.ALL)
        assert sorted(asked.url.removeprefix("http://") for asked in scene.http.asked[:4]) == [
            "a:1/flush_cache?timeout=60",
            "a:1/release_memory_occupation",
            "b:1/flush_cache?timeout=60",
            "b:1/release_memory_occupation",
        ]
        assert [asked.url.removeprefix("http://") for asked in scene.http.asked[4:]] == [
            "a:1/resume_memory_occupation",
            "b:1/resume_memory_occupation",
        ]
        assert {asked.deadline_s for asked in scene.http.asked} == {60.0}

    play(act)


@pytest.mark.parametrize(
    ("fails", "states"),
    [
        ("http://a:1/release_memory_occupation", {"a": "Dead", "b": "Healthy"}),
        ("release_memory_occupation", {"a": "Dead", "b": "Dead"}),
    ],
)
def test_an_engine_that_keeps_its_memory_is_ended_and_the_others_go_on(fails: str, states: dict[str, str]) -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.http.answers[fails] = Reply(500, "no")
        await scene.pool.hold(memory.NOTHING)
        assert scene.states() == states
        assert {f"stop {name}" for name, state in states.items() if state == "Dead"} <= set(scene.happened)
        assert "500 no" in (scene.pool.snapshot()[0].last_error or "")
        await scene.pool.hold(memory.ALL)
        scene.pool.restart("a", 1)
        await scene.until(lambda: scene.states()["a"] != "Dead")

    play(act)


def test_a_publication_that_ends_after_the_pool_has_stopped_is_no_failure() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        go_on = asyncio.Event()

        async def publish(version: int, engines: Engines) -> Publication:
            await go_on.wait()
            return Publication(version, 0.0, (), {"a": "connection reset", "b": "connection reset"})

        publication = asyncio.ensure_future(scene.pool.publish(1, publish))
        await asyncio.sleep(0)
        await scene.pool.stop()
        go_on.set()
        await publication

    assert play(act).incidents == []


def test_an_incident_is_reported_once_although_the_pool_is_stopped_twice() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0, failed={"a": "1 of 14 tensors differ"})
        await scene.pool.stop()

    assert len(play(act).incidents) == 1


def test_a_defect_in_the_background_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        scene.defect = KeyError("ranks")
        scene.pool.restart("a", 1)
        await scene.until(lambda: scene.states()["a"] == "Stale")
        await asyncio.sleep(0)

    play(act)
    assert "KeyError: 'ranks'" in caplog.text
    assert caplog.text.count("action=defect") == 1
