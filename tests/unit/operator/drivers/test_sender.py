"""Orders to Ray and to a driver: the newest are sent, each until it is accepted, and reported once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rljob_api.control import EngineOrder, Scale
from rljob_api.recovery import RestartEngine
from rljob_operator.drivers import sender
from rljob_operator.drivers.driver_api import DriverUnreachableError
from rljob_operator.drivers.sender import STOP_AGAIN_S, Drain, Order, Sender, Stop, Submit
from rljob_operator.plan import NO_ORDERS, Orders
from support.trainer import virtual_time

NAME = "sums-attempt-1"
RESTART = RestartEngine("engine-0", 2, "killed by SIGKILL")
FEW, MORE = Scale(generation=1, engines=2), Scale(generation=2, engines=3)


class Head:
    """Ray, which knows a driver after its submission, and the driver; both note what arrives."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.known: set[str] = set()
        self.failures = 0
        """so many of the next requests are not answered"""
        self.gate = asyncio.Event()
        """closed: no request is answered"""
        self.gate.set()

    async def submit(self, name: str, entrypoint: str) -> bool:
        await self._arrives((name, entrypoint))
        is_new = name not in self.known
        self.known.add(name)
        return is_new

    async def stop(self, name: str) -> None:
        await self._arrives(("stop", name))

    async def drain(self) -> None:
        await self._arrives("drain")

    async def order(self, engine: str, order: EngineOrder) -> None:
        await self._arrives((engine, order))

    async def scale(self, order: Scale) -> None:
        await self._arrives(order)

    async def _arrives(self, call: Any) -> None:
        self.calls.append(call)
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise DriverUnreachableError("no answer", 0)


class Scene:
    """A sender that runs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.head = Head()
        self.accepted: list[Order] = []
        self.failed: list[Order] = []
        head: Any = self.head
        self.sender = Sender(NAME, head, head, lambda: self.now, self._answered)

    def _answered(self, order: Order, is_accepted: bool) -> None:
        (self.accepted if is_accepted else self.failed).append(order)

    async def give(self, *all_orders: Orders) -> None:
        """Give orders, each after the sender has done what it can about those before."""
        for orders in all_orders:
            self.sender.give(orders)
            await settled()


async def settled() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def play(scenario: Callable[[Scene], Awaitable[None]], runs: Callable[..., Scene] = asyncio.run) -> Scene:
    async def run() -> Scene:
        scene = Scene()
        task = asyncio.create_task(scene.sender.run())
        try:
            await scenario(scene)
        finally:
            task.cancel()
        return scene

    return runs(run())


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        (Orders(submit="exec driver"), Submit("exec driver")),
        (Orders(stop=True), Stop()),
        (Orders(drain=True), Drain()),
        (Orders(engines=(RESTART,)), RESTART),
        (Orders(scale=FEW), FEW),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_order_that_every_plan_repeats_is_sent_and_reported_once(given: Orders, accepted: Order):
    async def scenario(scene: Scene) -> None:
        await scene.give(given, given, NO_ORDERS, given)

    scene = play(scenario)
    assert scene.accepted == [accepted]
    assert len(scene.head.calls) == 1


def test_a_driver_that_ray_knows_from_a_submission_whose_answer_was_lost_is_new_once():
    async def scenario(scene: Scene) -> None:
        scene.head.known.add(NAME)
        await scene.give(Orders(submit="exec driver"))
        scene.sender.forget_submission()
        await settled()

    scene = play(scenario)
    assert scene.head.calls == [(NAME, "exec driver")] * 2
    assert scene.accepted == [Submit("exec driver")]


def test_a_driver_that_ray_has_lost_is_submitted_and_counted_again():
    async def scenario(scene: Scene) -> None:
        await scene.give(Orders(submit="exec driver"))
        scene.head.known.clear()
        scene.sender.forget_submission()
        await settled()

    assert play(scenario).accepted == [Submit("exec driver")] * 2


def test_a_driver_counts_as_stopping_for_a_time_and_is_stopped_again_after_it():
    async def scenario(scene: Scene) -> None:
        assert not scene.sender.is_stopping
        await scene.give(Orders(stop=True), NO_ORDERS)
        scene.now += STOP_AGAIN_S - 1
        assert scene.sender.is_stopping
        scene.now += 1
        assert not scene.sender.is_stopping
        await scene.give(Orders(stop=True))

    assert play(scenario).accepted == [Stop(), Stop()]


def test_an_engine_is_restarted_once_for_each_of_its_generations():
    later = RestartEngine("engine-0", 3, "hangs")

    async def scenario(scene: Scene) -> None:
        await scene.give(Orders(engines=(RESTART,)), Orders(engines=(RESTART, later)))

    assert play(scenario).head.calls == [
        ("engine-0", EngineOrder(generation=2, desired="Running", reason="killed by SIGKILL")),
        ("engine-0", EngineOrder(generation=3, desired="Running", reason="hangs")),
    ]


def test_a_number_of_engines_is_sent_until_it_changes():
    async def scenario(scene: Scene) -> None:
        await scene.give(Orders(scale=FEW), Orders(scale=FEW), Orders(scale=MORE))

    assert play(scenario).head.calls == [FEW, MORE]


def test_an_order_that_is_not_accepted_is_sent_again_by_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "FIRST_RETRY_S", 0.0)

    async def scenario(scene: Scene) -> None:
        scene.head.failures = 2
        scene.sender.give(Orders(drain=True))
        while not scene.accepted:
            await asyncio.sleep(0)

    scene = play(scenario)
    assert (scene.head.calls, scene.failed, scene.accepted) == (["drain"] * 3, [Drain()] * 2, [Drain()])


def test_retries_wait_1_to_15_seconds_and_begin_anew_after_a_success():
    async def scenario(scene: Scene) -> None:
        for scale, failures, wait_s in ((FEW, 6, 1 + 2 + 4 + 8 + 15 + 15), (MORE, 2, 1 + 2)):
            before, scene.head.failures = list(scene.accepted), failures
            scene.sender.give(Orders(scale=scale))
            await asyncio.sleep(wait_s - 0.5)
            assert scene.accepted == before
            await asyncio.sleep(1.0)
            assert scene.accepted == [*before, scale]

    play(scenario, virtual_time.run)


def test_an_order_that_fails_does_not_hold_up_the_others():
    async def scenario(scene: Scene) -> None:
        scene.head.failures = 1
        await scene.give(Orders(engines=(RESTART,), scale=FEW))

    scene = play(scenario)
    assert (scene.failed, scene.accepted) == ([RESTART], [FEW])


def test_other_orders_do_not_wait_for_the_retry_of_those_before():
    async def scenario(scene: Scene) -> None:
        scene.head.failures = 1
        await scene.give(Orders(scale=FEW), Orders(scale=FEW))
        assert scene.head.calls == [FEW], "the same orders wait for their retry"
        await scene.give(Orders(stop=True))

    assert play(scenario).accepted == [Stop()]


def test_an_order_that_is_withdrawn_while_another_waits_for_its_answer_is_not_sent():
    async def scenario(scene: Scene) -> None:
        scene.head.gate.clear()
        await scene.give(Orders(drain=True, scale=FEW), Orders(scale=MORE))
        scene.head.gate.set()
        await settled()

    assert play(scenario).head.calls == ["drain", MORE]


def test_without_orders_nothing_is_sent():
    async def scenario(scene: Scene) -> None:
        await scene.give(NO_ORDERS)

    assert play(scenario).head.calls == []
