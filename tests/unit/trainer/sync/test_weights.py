"""The loop's view of weights: published within a deadline, and changed when no engine reads them."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rljob_trainer.engines import memory
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.metrics import Publication
from rljob_trainer.sync.gpu_sharing import GpuSharing, LeavingLearner
from rljob_trainer.sync.weights import EngineWeights
from support.trainer.virtual_time import VirtualBackground

NAMES = {memory.NOTHING: "nothing", memory.WITHOUT_CACHE: "weights", memory.ALL: "all"}


class FakePublisher:
    timeout_s = 25.0

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened

    async def publish(self, version: int, engines: list[str]) -> Publication:
        return Publication(version, 1.0, tuple(engines), {})

    async def learner_moves(self) -> None:
        self.happened.append("learner moves")


class Noted:
    """A learner that leaves."""

    publishing = memory.WITHOUT_CACHE

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened

    async def trained(self) -> None:
        self.happened.append("optimizer leaves")

    async def published(self) -> None:
        self.happened.append("learner leaves")


class FakePool:
    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.sharing = Noted(happened)

    async def publish(self, version: int, publish: Any) -> Publication:
        return await publish(version, ["a", "b"])

    async def hold(self, parts: memory.Parts) -> None:
        self.happened.append(f"engines hold {NAMES[parts]}")


class Scene:
    def __init__(self, background: VirtualBackground) -> None:
        self.happened: list[str] = []
        self.background = background
        pool, publisher = cast(Any, FakePool(self.happened)), cast(Any, FakePublisher(self.happened))
        self.weights = EngineWeights(pool, publisher, cast(Any, background))
        self.sharing = GpuSharing(self.weights, pool, cast(Any, background))


@pytest.fixture
def scene() -> Iterator[Scene]:
    background = VirtualBackground()
    yield Scene(background)
    background.close()


def test_a_publication_reaches_the_pools_engines_within_four_transfers(scene: Scene) -> None:
    assert scene.weights.publish(7) == Publication(7, 1.0, ("a", "b"), {})
    assert scene.background.timeouts == [100.0]


def test_the_learner_changes_its_weights_when_no_transfer_reads_them(scene: Scene) -> None:
    with scene.weights.training():
        scene.happened.append("train")
    assert scene.happened == ["learner moves", "train"]
    assert scene.background.timeouts == [100.0]


def test_engines_give_their_memory_for_the_time_of_training(scene: Scene) -> None:
    with scene.sharing.training():
        scene.happened.append("train")
    assert scene.happened == [
        "learner moves",
        "engines hold nothing",
        "train",
        "optimizer leaves",
        "engines hold weights",
    ]
    assert scene.background.timeouts == [100.0, 180.0, 180.0]


def test_engines_make_room_for_the_time_of_saving(scene: Scene) -> None:
    with scene.sharing.saving():
        scene.happened.append("save")
    assert scene.happened == ["engines hold weights", "save", "learner leaves", "engines hold all"]


def test_a_learner_with_gpus_of_its_own_saves_at_once(scene: Scene) -> None:
    with scene.weights.saving():
        scene.happened.append("save")
    assert scene.happened == ["save"]


class FakeLearner:
    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def call(self, *arguments: object) -> list[None]:
        self.calls.append(arguments)
        return [None]


def test_a_learner_in_turns_leaves_weights_for_the_publication_alone() -> None:
    learner = FakeLearner()
    sharing = LeavingLearner(cast(Any, learner))
    asyncio.run(sharing.trained())
    asyncio.run(sharing.published())
    assert learner.calls == [(Rank.leave, False), (Rank.leave, True)]


def test_nobody_leaves_before_learner_and_engines_have_met() -> None:
    asyncio.run(LeavingLearner().published())


def test_engines_do_not_take_their_memory_back_after_an_error(scene: Scene) -> None:
    with pytest.raises(RuntimeError), scene.sharing.training():
        raise RuntimeError
    assert scene.happened == ["learner moves", "engines hold nothing"]
