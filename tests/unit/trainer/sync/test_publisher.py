"""Publication over engines that only remember what they were asked."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from rljob_trainer.engines.client import EngineClient, EngineUnreachableError
from rljob_trainer.metrics import Publication
from rljob_trainer.sync.publisher import Publisher, describe, unequal_tensors
from rljob_trainer.sync.transport import Transfer, TransferError

WANTED = ({"embed": "11", "norm": "22"},)


class FakeEngine:
    """Answers like `EngineClient`; what is in `failing` is not answered."""

    def __init__(self, name: str, held: Sequence[dict[str, str]] = WANTED, failing: str = "") -> None:
        self.name = name
        self.url = f"http://{name}"
        self.asked: list[str] = []
        self._held = held
        self._failing = failing

    async def pause(self, mode: str, deadline_s: float) -> None:
        self._ask("pause")

    async def probe(self, deadline_s: float) -> None:
        self._ask("probe")

    async def digests(self, deadline_s: float) -> Sequence[dict[str, str]]:
        self._ask("digests")
        return self._held

    async def label_weights(self, version: int, deadline_s: float) -> None:
        self._ask(f"label {version}")

    async def resume(self, deadline_s: float) -> None:
        self._ask("resume")

    def _ask(self, what: str) -> None:
        if what == self._failing:
            raise EngineUnreachableError(f"engine {self.name}: {what}: no answer")
        self.asked.append(what)


class FakeTransport:
    def __init__(self, failed: dict[str, str] | None = None, error: Exception | None = None) -> None:
        self.reached: list[str] = []
        self._failed = failed or {}
        self._error = error

    async def transfer(self, engines: Sequence[EngineClient], timeout_s: float) -> Transfer:
        self.reached = [engine.name for engine in engines]
        if self._error is not None:
            raise self._error
        return Transfer(WANTED, self._failed)


def publish(publisher: Publisher, version: int, *engines: FakeEngine) -> Publication:
    return asyncio.run(publisher.publish(version, cast(Any, engines)))


def test_an_engine_is_verified_and_labelled_before_it_goes_on() -> None:
    engine = FakeEngine("a")
    publication = publish(Publisher(FakeTransport(), 1.0), 7, engine)
    assert publication.engines == ("a",)
    assert engine.asked == ["pause", "probe", "digests", "label 7", "resume"]


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
