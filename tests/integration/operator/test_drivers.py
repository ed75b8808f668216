"""How the operator sees drivers over HTTP, against fake heads: what counts as absent, ended, silent, unreachable."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from fake_head import FakeHeads, Head, serving
from rljob_api.control import Scale
from rljob_operator import driver_api
from rljob_operator.driver_api import DriverUnreachableError, RayJobs, open_session
from rljob_operator.drivers import Drivers
from rljob_operator.plan import Follow, Orders
from rljob_operator.world import SILENT_S, Driver, DriverState

FOLLOW = Follow("sums-7f3a1-attempt-1", 1, "ml", "sums-7f3a1-driver")
COMMAND = "exec python -m rljob_trainer.driver --attempt 1"
TOKEN = "a token of more than twenty characters"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def with_drivers(url: str, scenario: Callable[[Drivers, Clock], Awaitable[None]]) -> None:
    async def run() -> None:
        clock = Clock()
        async with open_session() as session:
            resolve = lambda namespace, service, _: url.format(namespace=namespace, service=service)  # noqa: E731
            drivers = Drivers(session, resolve, clock, changed=lambda *_: None)
            await drivers.follow("ml/sums", FOLLOW, TOKEN)
            try:
                await scenario(drivers, clock)
            finally:
                await drivers.close()

    asyncio.run(run())


async def until(drivers: Drivers, holds: Callable[[Driver], bool]) -> Driver:
    async with asyncio.timeout(20):
        while not ((driver := drivers.driver("ml/sums")) and holds(driver)):
            await asyncio.sleep(0.02)
        return driver


def test_a_driver_is_submitted_followed_and_seen_to_end():
    heads = FakeHeads()

    async def scenario(drivers: Drivers, _: Clock) -> None:
        await until(drivers, lambda driver: driver.state is DriverState.ABSENT)
        await drivers.obey("ml/sums", Orders(submit=COMMAND))
        seen = await until(drivers, lambda driver: driver.status is not None)
        assert seen.status is not None
        assert seen.status.progress.step == 3
        heads.head("ml").end(5)
        assert (await until(drivers, lambda driver: driver.state is DriverState.FAILED)).exit_code == 5

    with serving(heads) as url:
        with_drivers(url, scenario)
    assert heads.head("ml").tokens == {TOKEN}


def test_submitting_again_is_no_error_and_starts_nothing():
    heads = FakeHeads()

    async def scenario(drivers: Drivers, _: Clock) -> None:
        told = [await drivers.obey("ml/sums", Orders(submit=COMMAND)) for _ in range(2)]
        assert [orders.submit for orders in told] == [COMMAND, None]
        heads.head("ml").jobs.clear()
        assert (await drivers.obey("ml/sums", Orders(submit=COMMAND))).submit == COMMAND

    with serving(heads) as url:
        with_drivers(url, scenario)
    assert (len(heads.submissions), len(heads.refused)) == (2, 1)


def test_a_driver_whose_submission_was_never_answered_counts_as_submitted():
    heads = FakeHeads()
    heads.heads[FOLLOW.namespace, FOLLOW.service] = Head(jobs={FOLLOW.submission_id: "RUNNING"})

    async def scenario(drivers: Drivers, _: Clock) -> None:
        assert (await drivers.obey("ml/sums", Orders(submit=COMMAND))).submit == COMMAND

    with serving(heads) as url:
        with_drivers(url, scenario)


def test_the_driver_of_another_attempt_is_not_taken_for_ours():
    heads = FakeHeads()

    async def scenario(drivers: Drivers, _: Clock) -> None:
        await drivers.obey("ml/sums", Orders(submit=COMMAND))
        heads.head("ml").change(attempt=7)
        await until(drivers, lambda driver: driver.state is DriverState.RUNNING)
        await asyncio.sleep(0.5)
        driver = drivers.driver("ml/sums")
        assert driver is not None
        assert driver.status is None or driver.status.attempt == 1

    with serving(heads) as url:
        with_drivers(url, scenario)


def test_a_head_that_stops_answering_makes_a_driver_unknown_and_not_absent():
    heads = FakeHeads()

    async def scenario(drivers: Drivers, clock: Clock) -> None:
        await drivers.obey("ml/sums", Orders(submit=COMMAND))
        await until(drivers, lambda driver: driver.state is DriverState.RUNNING)
        heads.are_down = True
        clock.now += SILENT_S + 1
        await until(drivers, lambda driver: driver.state is DriverState.UNKNOWN)
        heads.are_down = False
        back = await until(drivers, lambda driver: driver.state is DriverState.RUNNING)
        assert back.since == clock.now

    with serving(heads) as url:
        with_drivers(url, scenario)


def test_a_number_of_engines_is_ordered_once():
    heads = FakeHeads()

    async def scenario(drivers: Drivers, _: Clock) -> None:
        await drivers.obey("ml/sums", Orders(submit=COMMAND))
        for order in (Scale(generation=2, engines=3), Scale(generation=2, engines=3), Scale(generation=3, engines=1)):
            await drivers.obey("ml/sums", Orders(scale=order))
        seen = await until(drivers, lambda driver: driver.status is not None)
        assert seen.status is not None

    with serving(heads) as url:
        with_drivers(url, scenario)
    assert [order.engines for order in heads.head("ml").scales] == [3, 1]


MANY = 120
"""more than the connections that aiohttp opens unless it is told"""


class SilentHeads(FakeHeads):
    """No driver has anything to tell before all of them are asked at the same time."""

    asked = 0
    most = 0

    async def _status(self, request: web.Request) -> web.Response:
        self.asked += 1
        self.most = max(self.most, self.asked)
        try:
            while self.most < MANY:
                await asyncio.sleep(0.2)
            return await super()._status(request)
        finally:
            self.asked -= 1


def test_drivers_with_nothing_to_tell_do_not_make_another_one_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver_api, "ANSWER_S", 100.0)  # or those that wait for their turn would be asked again
    heads = SilentHeads()

    async def scenario(drivers: Drivers, _: Clock) -> None:
        for number in range(MANY):
            name = f"job-{number}"
            await drivers.follow(name, Follow(name, 1, "ml", name), TOKEN)
            await drivers.obey(name, Orders(submit=COMMAND))
        async with asyncio.timeout(20):
            while heads.most < MANY:
                await asyncio.sleep(0.2)

    with serving(heads) as url:
        with_drivers(url, scenario)


def test_a_404_that_is_not_rays_does_not_make_a_driver_absent():
    async def ask(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            await RayJobs(session, url.partition("/{")[0] + "/elsewhere").look("x")

    with serving(FakeHeads()) as url, pytest.raises(DriverUnreachableError, match="404"):
        asyncio.run(ask(url))
