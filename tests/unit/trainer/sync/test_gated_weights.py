"""Weights change when no request is behind the gate, and no request waits for longer than it must."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from rljob_trainer.engines.gate import Gate
from rljob_trainer.metrics import Publication
from rljob_trainer.sync.gated_weights import CUT_S, GatedWeights
from support.trainer.virtual_time import VirtualBackground


class FakePool:
    def __init__(self) -> None:
        self.urls: tuple[str, ...] = ("http://a:1",)

    def serving_urls(self) -> tuple[str, ...]:
        return self.urls


class FakeWeights:
    """Remembers which versions were published, and whether the gate was open then."""

    def __init__(self, background: VirtualBackground, gate: Gate) -> None:
        self.background, self.gate, self.pool = background, gate, FakePool()
        self.published: list[int] = []
        self.open: list[bool] = []
        self.fails = False

    def publish(self, version: int) -> Publication:
        self.open.append(not self.gate.is_closed)
        if self.fails:
            raise RuntimeError("no engine")
        self.published.append(version)
        return Publication(version, 2.0, ("a",), {}, {"transfer": 1.5})


class Scene:
    def __init__(self, background: VirtualBackground, due: Callable[[int], bool], cuts: bool) -> None:
        self.background, self.gate = background, Gate()
        self.weights = FakeWeights(background, self.gate)
        self.cuts = 0
        self.gated = GatedWeights(
            cast(Any, self.weights), self.gate, due, self.cut if cuts else None, clock=background.time
        )

    async def cut(self) -> None:
        self.cuts += 1

    def request(self, seconds: float) -> "asyncio.Task[None]":
        """Send a request that an engine answers after some time."""

        async def asked() -> None:
            async with self.gate.passed():
                await asyncio.sleep(seconds)

        async def sent() -> "asyncio.Task[None]":
            task = asyncio.ensure_future(asked())
            await asyncio.sleep(0)
            return task

        return self.background.run(sent(), None)


@pytest.fixture
def background() -> Iterator[VirtualBackground]:
    made = VirtualBackground()
    yield made
    made.close()


def test_a_publication_waits_for_what_runs_and_says_how_long(background: VirtualBackground) -> None:
    scene = Scene(background, lambda version: True, cuts=False)
    request = scene.request(7.0)
    publication = scene.gated.publish(3)
    assert request.done()
    assert publication == Publication(3, 2.0, ("a",), {}, {"transfer": 1.5}, waited_s=pytest.approx(7.0))
    assert (scene.weights.published, scene.weights.open) == ([3], [False])
    assert not scene.gate.is_closed


def test_weights_are_published_when_they_are_due_and_the_first_time(background: VirtualBackground) -> None:
    scene = Scene(background, lambda version: version % 2 == 0, cuts=False)
    held = [scene.gated.publish(version) for version in (1, 2, 3, 4)]
    assert [publication.version for publication in held] == [1, 2, 2, 4]
    assert scene.weights.published == [1, 2, 4]
    assert (held[2].seconds, held[2].parts, held[2].waited_s) == (0.0, {}, 0.0)
    assert held[2].engines == ("a",)


def test_what_runs_is_cut_off_again_until_nothing_is_behind_the_gate(background: VirtualBackground) -> None:
    scene = Scene(background, lambda version: True, cuts=True)
    scene.request(0.45)
    publication = scene.gated.publish(1)
    assert scene.cuts == 5, "at once, and every 0.1 s"
    assert publication.waited_s == pytest.approx(0.45)


def test_a_request_that_does_not_end_does_not_hold_up_a_publication_that_cuts(background: VirtualBackground) -> None:
    scene = Scene(background, lambda version: True, cuts=True)
    scene.request(1000.0)
    assert scene.gated.publish(1).waited_s == pytest.approx(CUT_S, abs=0.11)
    assert scene.weights.published == [1]


def test_the_gate_opens_again_after_a_publication_that_failed(background: VirtualBackground) -> None:
    scene = Scene(background, lambda version: True, cuts=False)
    scene.weights.fails = True
    with pytest.raises(RuntimeError):
        scene.gated.publish(1)
    assert not scene.gate.is_closed
    assert background.timeouts == [None, None]


@pytest.mark.parametrize(
    ("urls", "versions", "published"),
    [
        ((), (2, 3), [2, 3]),
        (("http://a:1",), (2, 3), [2]),
        ((), (2,), [2]),
        ((), (), []),
    ],
    ids=["no engine serves old weights", "one serves", "weights are published", "nothing was published"],
)
def test_weights_are_published_early_where_no_engine_could_come_back(
    background: VirtualBackground, urls: tuple[str, ...], versions: tuple[int, ...], published: list[int]
) -> None:
    scene = Scene(background, lambda version: version % 2 == 0, cuts=False)
    scene.weights.pool.urls = urls
    for version in versions:
        scene.gated.publish(version)
    scene.gated.rescue()
    assert scene.weights.published == published
