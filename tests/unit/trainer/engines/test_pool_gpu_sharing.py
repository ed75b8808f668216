"""Engines whose learner leaves the GPU: who has which memory, and when."""

from typing import Any

import pytest

from rljob_trainer.engines import memory
from rljob_trainer.metrics import Publication
from support.trainer.engine_pool import Scene, play
from support.trainer.http_answers import Reply

CACHE, REST = {"tags": ["kv_cache"]}, {"tags": ["cuda_graph", "weights"]}
EVERYTHING = {"tags": ["cuda_graph", "kv_cache", "weights"]}


class Noted:
    """A learner that leaves, into a scene's list of what happened."""

    publishing = memory.WITHOUT_CACHE

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened

    async def trained(self) -> None:
        self.happened.append("trained")

    async def published(self) -> None:
        self.happened.append("published")


def moves(scene: Scene) -> list[Any]:
    """Return, in order, what engine a was asked about its memory."""
    asked = [each for each in scene.http.asked if "memory_occupation" in each.url and each.url.startswith("http://a:")]
    return [(each.url.rpartition("/")[2].partition("_")[0], each.body) for each in asked]


def in_turns(scene: Scene) -> Scene:
    scene.pool.sharing = Noted(scene.happened)
    return scene


def test_the_cache_makes_room_for_the_learner_s_weights_and_comes_last() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(0)
        assert moves(scene) == [("release", CACHE), ("resume", CACHE)]
        assert scene.happened.index("published") < scene.happened.index("add http://a:1")
        assert scene.states() == {"a": "Healthy", "b": "Healthy"}

    play(act)


def test_a_step_moves_every_part_of_an_engine_s_memory_once() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(0)
        done = len(moves(scene))
        await scene.pool.hold(memory.NOTHING)
        await scene.pool.hold(memory.WITHOUT_CACHE)
        await scene.publish(1)
        assert moves(scene)[done:] == [("release", EVERYTHING), ("resume", REST), ("resume", CACHE)]
        assert [each for each in scene.happened if each in ("trained", "published")] == ["published"] * 2

    play(act)


def test_a_second_turn_of_the_learner_finds_the_cache_released() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(0)
        done = len(moves(scene))
        await scene.pool.hold(memory.NOTHING)
        await scene.pool.hold(memory.WITHOUT_CACHE)
        await scene.pool.hold(memory.NOTHING)
        assert moves(scene)[done:] == [("release", EVERYTHING), ("resume", REST), ("release", REST)]

    play(act)


def test_a_checkpoint_has_the_room_of_the_cache() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(0)
        done = len(moves(scene))
        await scene.pool.hold(memory.WITHOUT_CACHE)
        assert moves(scene)[done:] == [("release", CACHE)]
        await scene.pool.hold(memory.ALL)
        assert moves(scene)[done + 1 :] == [("resume", CACHE)]

    play(act)


def test_a_learner_that_stays_needs_no_room() -> None:
    async def act(scene: Scene) -> None:
        await scene.publish(0)
        await scene.pool.hold(scene.pool.sharing.publishing)
        await scene.pool.hold(memory.ALL)
        assert moves(scene) == []

    play(act)


def test_an_engine_that_keeps_its_cache_fails_the_publication() -> None:
    async def act(scene: Scene) -> None:
        in_turns(scene).http.answers["http://a:1/release_memory_occupation"] = Reply(500, "no")
        await scene.publish(0, failed={"a": "killed"})
        assert scene.states() == {"a": "Dead", "b": "Healthy"}
        assert "500 no" in (scene.pool.snapshot()[0].last_error or "")

    play(act)


def test_an_engine_that_cannot_have_its_cache_does_not_serve() -> None:
    async def act(scene: Scene) -> None:
        in_turns(scene).http.answers["http://a:1/resume_memory_occupation"] = Reply(500, "no")
        publication = await scene.publish(0)
        assert publication.engines == ("b",)
        assert list(publication.failed) == ["a"]
        assert scene.states() == {"a": "Dead", "b": "Healthy"}

    play(act)


def test_an_engine_that_returns_waits_for_the_next_step_while_others_serve() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(3)
        scene.hosts["a"].crash()
        await scene.until(lambda: scene.states()["a"] == "Dead")
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: scene.states()["a"] == "Stale")
        await scene.pool.hold(memory.NOTHING)
        assert scene.http.bodies("a:2/release_memory_occupation") == [EVERYTHING], "it leaves room, too"
        await scene.pool.hold(memory.WITHOUT_CACHE)
        await scene.publish(4)
        assert scene.router.urls == {"http://a:2", "http://b:1"}

    play(act)


def test_an_engine_that_returns_catches_up_when_no_other_serves() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(3)
        for name in "ab":
            scene.hosts[name].crash()
        await scene.until(lambda: set(scene.states().values()) == {"Dead"})
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: scene.router.urls == {"http://a:2"})
        assert scene.http.bodies("a:2/release_memory_occupation") == [CACHE]
        assert scene.http.bodies("a:2/resume_memory_occupation") == [CACHE]

    play(act)


def test_nothing_is_made_of_a_publication_that_did_not_take_place() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(3)
        for name in "ab":
            scene.hosts[name].crash()
        await scene.until(lambda: set(scene.states().values()) == {"Dead"})
        scene.ahead = True
        scene.happened.clear()
        scene.pool.restart("a", generation=1)
        await scene.until(lambda: scene.http.bodies("a:2/release_memory_occupation") == [CACHE])
        assert "published" not in scene.happened
        await scene.publish(4)
        assert scene.http.bodies("a:2/resume_memory_occupation") == [CACHE]
        assert scene.router.urls == {"http://a:2"}

    play(act)


def test_an_error_of_the_learner_ends_the_publication() -> None:
    class Lost(Noted):
        async def published(self) -> None:
            raise RuntimeError("a rank is gone")

    async def act(scene: Scene) -> None:
        scene.pool.sharing = Lost(scene.happened)
        with pytest.raises(RuntimeError, match="a rank is gone"):
            await scene.publish(0)

    play(act)


def test_an_engine_that_does_not_give_its_cache_to_a_checkpoint_is_ended() -> None:
    async def act(scene: Scene) -> None:
        await in_turns(scene).publish(0)
        scene.http.answers["http://b:1/release_memory_occupation"] = Reply(500, "no")
        await scene.pool.hold(memory.WITHOUT_CACHE)
        assert scene.states() == {"a": "Healthy", "b": "Dead"}
        await scene.pool.hold(memory.ALL)
        assert (scene.states()["a"], moves(scene)[-1]) == ("Healthy", ("resume", CACHE))

    play(act)


def test_a_publication_keeps_the_failures_that_it_had() -> None:
    async def act(scene: Scene) -> None:
        in_turns(scene).http.answers["http://b:1/resume_memory_occupation"] = Reply(500, "no")
        publication: Publication = await scene.publish(0, failed={"a": "1 tensor differs"})
        assert publication.failed["a"] == "1 tensor differs"
        assert sorted(publication.failed) == ["a", "b"]

    play(act)
