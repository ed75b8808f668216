"""Publication over engines that only remember what they were asked."""

import asyncio
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rljob_trainer.engines.client import EngineClient, EngineUnreachableError
from rljob_trainer.metrics import Publication
from rljob_trainer.sync import publisher as publishing
from rljob_trainer.sync.publisher import Publisher, describe, unequal_tensors
from rljob_trainer.sync.transport import Transfer, TransferError
from support.trainer import virtual_time

WANTED = ({"embed": "11", "norm": "22"},)


class FakeEngine:
    """Answers like `EngineClient`; what is in `failing` is not answered."""

    def __init__(self, name: str, held: Sequence[dict[str, str]] = WANTED, failing: str = "") -> None:
        self.name = name
        self.url = f"http://{name}"
        self.asked: list[str] = []
        self.deadlines: list[float] = []
        self.modes: list[str] = []
        self._held = held
        self._failing = failing

    async def pause(self, mode: str, deadline_s: float) -> None:
        self.modes.append(mode)
        self._ask("pause", deadline_s)

    async def probe(self, deadline_s: float) -> None:
        self._ask("probe", deadline_s)

    async def digests(self, deadline_s: float) -> Sequence[dict[str, str]]:
        self._ask("digests", deadline_s)
        return self._held

    async def label_weights(self, version: int, deadline_s: float) -> None:
        self._ask(f"label {version}", deadline_s)

    async def resume(self, deadline_s: float) -> None:
        self._ask("resume", deadline_s)

    def _ask(self, what: str, deadline_s: float) -> None:
        if what == self._failing:
            raise EngineUnreachableError(f"engine {self.name}: {what}: no answer")
        self.asked.append(what)
        self.deadlines.append(deadline_s)


class FakeTransport:
    def __init__(self, failed: dict[str, str] | None = None, error: Exception | None = None) -> None:
        self.reached: list[str] = []
        self.deadlines: list[float] = []
        self._failed = failed or {}
        self._error = error

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        self.reached = [engine.name for engine in engines]
        self.deadlines.append(timeout_s)
        if self._error is not None:
            raise self._error
        return Transfer(WANTED, self._failed)


class SlowTransport:
    """Reads the learner's weights until it is let go."""

    def __init__(self) -> None:
        self.began, self.ends = asyncio.Event(), asyncio.Event()
        self.transfers = 0

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        self.transfers += 1
        self.began.set()
        await self.ends.wait()
        return Transfer(WANTED, {})


def publish(publisher: Publisher, version: int, *engines: FakeEngine) -> Publication:
    return asyncio.run(publisher.publish(version, cast(Any, engines)))


def test_an_engine_is_verified_and_labelled_before_it_goes_on() -> None:
    engine = FakeEngine("a")
    publication = publish(Publisher(FakeTransport(), 1.0), 7, engine)
    assert publication.engines == ("a",)
    assert engine.asked == ["pause", "probe", "digests", "label 7", "resume"]


def test_only_transfer_and_verification_may_take_as_long_as_the_weights_need() -> None:
    engine, transport = FakeEngine("a"), FakeTransport()
    publish(Publisher(transport, 77.0, pause_mode="in_place"), 7, engine)
    assert (engine.deadlines, transport.deadlines) == ([10.0, 10.0, 77.0, 10.0, 10.0], [77.0])
    assert engine.modes == ["in_place"]


def test_a_publication_says_how_long_each_part_took(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(1.0)
    monkeypatch.setattr(publishing, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    publication = publish(Publisher(FakeTransport(), 1.0), 7, FakeEngine("a"))
    assert publication.parts == {"pause": 1.0, "transfer": 1.0, "verify": 1.0, "resume": 1.0}
    assert publication.seconds == pytest.approx(9.0, abs=1.0)  # ticks after the first one


def test_an_engine_whose_label_fails_is_named_and_stays_paused() -> None:
    engine = FakeEngine("a", failing="label 7")
    publication = publish(Publisher(FakeTransport(), 1.0), 7, engine, FakeEngine("b"))
    assert (publication.engines, publication.failed) == (("b",), {"a": "engine a: label 7: no answer"})
    assert engine.asked == ["pause", "probe", "digests"]


def test_a_publication_has_its_version_and_the_publisher_too() -> None:
    publisher = Publisher(FakeTransport(), 1.0)
    assert (publish(publisher, 7, FakeEngine("a")).version, publisher.version) == (7, 7)


def test_an_engine_that_holds_something_else_stays_paused_and_is_named() -> None:
    good, bad = FakeEngine("a"), FakeEngine("b", held=({"embed": "11", "norm": "23"},))
    publication = publish(Publisher(FakeTransport(), 1.0), 7, good, bad)
    assert publication.engines == ("a",)
    assert publication.failed == {"b": "engine b: 1 of 2 tensors differ from the learner's: norm"}
    assert "resume" not in bad.asked


def test_an_engine_that_does_not_pause_gets_no_weights() -> None:
    transport = FakeTransport()
    publication = publish(Publisher(transport, 1.0), 7, FakeEngine("a"), FakeEngine("b", failing="probe"))
    assert transport.reached == ["a"]
    assert publication.failed == {"b": "engine b: probe: no answer"}


def test_an_engine_that_the_transfer_did_not_reach_stays_paused() -> None:
    left_behind = FakeEngine("b")
    publication = publish(Publisher(FakeTransport(failed={"b": "lost"}), 1.0), 7, FakeEngine("a"), left_behind)
    assert (publication.engines, publication.failed) == (("a",), {"b": "lost"})
    assert left_behind.asked == ["pause", "probe"]


def test_no_engine_goes_on_after_a_transfer_that_broke_off() -> None:
    engine = FakeEngine("a")
    with pytest.raises(TransferError):
        publish(Publisher(FakeTransport(error=TransferError("learner is lost")), 1.0), 7, engine)
    assert engine.asked == ["pause", "probe"]


def test_an_engine_that_cannot_go_on_has_failed() -> None:
    publication = publish(Publisher(FakeTransport(), 1.0), 7, FakeEngine("a", failing="resume"))
    assert publication.failed == {"a": "engine a: resume: no answer"}
    assert publication.engines == ()


def test_nothing_can_be_caught_up_with_before_the_first_publication() -> None:
    publisher = Publisher(FakeTransport(), 1.0)
    assert asyncio.run(publisher.catch_up(cast(Any, [FakeEngine("a")]))) is None


def test_catching_up_brings_the_version_published_last() -> None:
    async def act() -> Publication | None:
        publisher = Publisher(FakeTransport(), 1.0)
        await publisher.publish(7, [])
        return await publisher.catch_up(cast(Any, [FakeEngine("a")]))

    publication = asyncio.run(act())
    assert publication is not None
    assert (publication.version, publication.engines) == (7, ("a",))


def test_nobody_catches_up_with_weights_that_are_changing() -> None:
    async def act() -> tuple[Publication | None, Publication | None]:
        publisher = Publisher(FakeTransport(), 1.0)
        await publisher.publish(7, [])
        await publisher.learner_moves()
        refused = await publisher.catch_up(cast(Any, [FakeEngine("a")]))
        await publisher.publish(8, [])
        return refused, await publisher.catch_up(cast(Any, [FakeEngine("a")]))

    refused, caught_up = asyncio.run(act())
    assert refused is None
    assert caught_up is not None
    assert caught_up.version == 8


def test_the_learner_waits_for_a_transfer_that_reads_its_weights() -> None:
    async def act() -> Publication | None:
        transport, order = SlowTransport(), []
        publisher = Publisher(transport, 1.0)
        publication = asyncio.ensure_future(publisher.publish(7, []))
        publication.add_done_callback(lambda _: order.append("published"))
        await transport.began.wait()
        moving = asyncio.ensure_future(publisher.learner_moves())
        moving.add_done_callback(lambda _: order.append("learner moves"))
        await asyncio.sleep(10.0)
        assert order == []
        transport.ends.set()
        await asyncio.gather(publication, moving)
        assert order == ["published", "learner moves"]
        return await publisher.catch_up(cast(Any, [FakeEngine("a")]))

    assert virtual_time.run(act()) is None


def test_one_publication_goes_on_at_a_time() -> None:
    async def act() -> None:
        transport = SlowTransport()
        publisher = Publisher(transport, 1.0)
        first = asyncio.ensure_future(publisher.publish(7, []))
        await transport.began.wait()
        others = [asyncio.ensure_future(publisher.publish(8, [])), asyncio.ensure_future(publisher.catch_up([]))]
        await asyncio.sleep(10.0)
        assert transport.transfers == 1
        transport.ends.set()
        await asyncio.gather(first, *others)
        assert (transport.transfers, publisher.version) == (3, 8)

    virtual_time.run(act())


def test_engines_that_cannot_be_reached_now_catch_up_later() -> None:
    async def act() -> Publication | None:
        publisher = Publisher(FakeTransport(), 1.0)
        await publisher.publish(7, [])
        publisher.transport = FakeTransport(error=TransferError("learner is lost"))
        return await publisher.catch_up(cast(Any, [FakeEngine("a")]))

    assert asyncio.run(act()) is None


@pytest.mark.parametrize(
    ("held", "names"),
    [
        (({"embed": "11", "norm": "22"},), ()),
        (({"embed": "0", "norm": "22"},), ("embed",)),
        (({"embed": "11"},), ("norm",)),
        (({"embed": "11", "norm": "22", "head": "33"},), ("head",)),
        ((), ("0 ranks instead of 1",)),
    ],
)
def test_tensors_that_differ_are_missing_or_too_many_are_unequal(
    held: Sequence[dict[str, str]], names: tuple[str, ...]
) -> None:
    assert unequal_tensors(WANTED, held) == names


def test_a_message_names_the_first_tensors_and_counts_the_rest() -> None:
    names = [f"t{number}" for number in range(8)]
    assert describe(names, WANTED) == "8 of 2 tensors differ from the learner's: t0, t1, t2, t3, t4 and 3 more"
