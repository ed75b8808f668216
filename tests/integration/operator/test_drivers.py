"""How the operator sees drivers over HTTP, against fake heads: what counts as absent, ended, silent, unreachable."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_api.control import Scale, ray_token
from rljob_operator.drivers import driver_api
from rljob_operator.drivers.driver_api import DriverUnreachableError, RayJobs, open_session
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.drivers.sender import Order, Submit
from rljob_operator.plan import Follow, Orders
from rljob_operator.world.world import SILENT_S, Driver, DriverState
from support.operator.fake_head import FakeHeads, Head, serving

FOLLOW = Follow("sums-7f3a1-attempt-1", 1, "ml", "sums-7f3a1-driver")
COMMAND = "exec python -m rljob_trainer.driver --attempt 1"
TOKEN = "a token of more than twenty characters"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Followed(Drivers):
    """Drivers, and the orders that they have accepted."""

    def __init__(self, session: aiohttp.ClientSession, url: str, clock: Clock) -> None:
        resolve = lambda namespace, service, _: url.format(namespace=namespace, service=service)  # noqa: E731
        super().__init__(session, resolve, clock, changed=lambda *_: None, answered=self._note)
        self.answered: list[tuple[Order, bool]] = []

    @property
    def accepted(self) -> list[Order]:
        return [order for order, is_accepted in self.answered if is_accepted]

    def _note(self, order: Order, is_accepted: bool) -> None:
        self.answered.append((order, is_accepted))

    async def obey(self, orders: Orders, key: str = "ml/sums") -> None:
        """Give orders, and wait until one more is accepted."""
        wanted = len(self.accepted) + 1
        self.give(key, orders)
        async with asyncio.timeout(20):
            while len(self.accepted) < wanted:
                await asyncio.sleep(0.02)


def with_drivers(url: str, scenario: Callable[[Followed, Clock], Awaitable[None]], follow: Follow = FOLLOW) -> None:
    async def run() -> None:
        clock = Clock()
        async with open_session() as session:
            drivers = Followed(session, url, clock)
            await drivers.follow("ml/sums", follow, TOKEN)
            try:
                await scenario(drivers, clock)
            finally:
                await drivers.close()

    asyncio.run(run())


async def until(drivers: Followed, holds: Callable[[Driver], bool]) -> Driver:
    async with asyncio.timeout(20):
        while not ((driver := drivers.driver("ml/sums")) and holds(driver)):
            await asyncio.sleep(0.02)
        return driver


def test_a_driver_is_submitted_followed_and_seen_to_end():
    heads = FakeHeads()

    async def scenario(drivers: Followed, _: Clock) -> None:
        await until(drivers, lambda driver: driver.state is DriverState.ABSENT)
        await drivers.obey(Orders(submit=COMMAND))
        seen = await until(drivers, lambda driver: driver.status is not None)
        assert seen.status is not None
        assert seen.status.progress.step == 3
        heads.head("ml").end(5)
        assert (await until(drivers, lambda driver: driver.state is DriverState.FAILED)).exit_code == 5

    with serving(heads) as url:
        with_drivers(url, scenario)
    assert (heads.head("ml").tokens, heads.head("ml").ray_tokens) == ({TOKEN}, {ray_token(TOKEN)})


def test_submitting_again_is_no_error_and_starts_nothing():
    heads = FakeHeads()

    async def scenario(drivers: Followed, _: Clock) -> None:
        await drivers.obey(Orders(submit=COMMAND))
        await until(drivers, lambda driver: driver.state is DriverState.RUNNING)
        drivers.give("ml/sums", Orders(submit=COMMAND))
        await asyncio.sleep(0.2)
        assert drivers.accepted == [Submit(COMMAND)]

    with serving(heads) as url:
        with_drivers(url, scenario)
    assert (len(heads.submissions), len(heads.refused)) == (1, 0)


def test_a_driver_that_a_new_head_does_not_know_is_submitted_again():
    heads = FakeHeads()

    async def scenario(drivers: Followed, _: Clock) -> None:
        await drivers.obey(Orders(submit=COMMAND))
        heads.head("ml").jobs.clear()
        async with asyncio.timeout(20):
            while len(drivers.accepted) < 2:
                await asyncio.sleep(0.02)

    with serving(heads) as url:
        with_drivers(url, scenario)
    assert (len(heads.submissions), len(heads.refused)) == (2, 0)


def test_a_driver_whose_submission_was_never_answered_counts_as_submitted():
    heads = FakeHeads()
    heads.heads[FOLLOW.namespace, FOLLOW.service] = Head(jobs={FOLLOW.submission_id: "RUNNING"})

    async def scenario(drivers: Followed, _: Clock) -> None:
        await drivers.obey(Orders(submit=COMMAND))

    with serving(heads) as url:
        with_drivers(url, scenario)


@pytest.mark.parametrize("attempt", [1, 3], ids=["older", "newer"])
def test_the_driver_of_another_attempt_is_not_taken_for_ours(attempt: int):
    """An older driver that has not ended yet still holds the port; a newer one may have it already."""
    heads = FakeHeads()

    async def scenario(drivers: Followed, _: Clock) -> None:
        await drivers.obey(Orders(submit="exec python -m rljob_trainer.driver --attempt 2"))
        heads.head("ml").change(attempt=attempt)
        await until(drivers, lambda driver: driver.state is DriverState.RUNNING)
        await asyncio.sleep(0.5)
        driver = drivers.driver("ml/sums")
        assert driver is not None
        assert driver.status is None or driver.status.attempt == 2
        heads.head("ml").change(attempt=2)
        await until(drivers, lambda driver: driver.status is not None and driver.status.attempt == 2)

    with serving(heads) as url:
        with_drivers(url, scenario, Follow("sums-7f3a1-attempt-2", 2, "ml", "sums-7f3a1-driver"))


def test_a_head_that_stops_answering_makes_a_driver_unknown_and_not_absent():
    heads = FakeHeads()

    async def scenario(drivers: Followed, clock: Clock) -> None:
        await drivers.obey(Orders(submit=COMMAND))
        await until(drivers, lambda driver: driver.state is DriverState.RUNNING)
        heads.are_down, began = True, clock.now
        clock.now += SILENT_S + 1
        await until(drivers, lambda driver: driver.state is DriverState.UNKNOWN)
        heads.are_down = False
        back = await until(drivers, lambda driver: driver.state is DriverState.RUNNING)
        assert (back.since, back.turned) == (began, clock.now), "answers begin no deadline anew"

    with serving(heads) as url:
        with_drivers(url, scenario)


def test_a_number_of_engines_is_ordered_once():
    heads = FakeHeads()

    async def scenario(drivers: Followed, _: Clock) -> None:
        await drivers.obey(Orders(submit=COMMAND))
        await drivers.obey(Orders(scale=Scale(generation=2, engines=3)))
        drivers.give("ml/sums", Orders(scale=Scale(generation=2, engines=3)))
        await drivers.obey(Orders(scale=Scale(generation=3, engines=1)))
        seen = await until(drivers, lambda driver: driver.status is not None)
        assert seen.status is not None

    with serving(heads) as url:
        with_drivers(url, scenario)
    assert [order.engines for order in heads.head("ml").scales] == [3, 1]


MANY = 120
"""more than the connections that aiohttp opens by default"""


class SilentHeads(FakeHeads):
    """No driver has anything to report before all of them are asked at the same time."""

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


def test_drivers_with_nothing_to_report_do_not_make_another_one_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver_api, "ANSWER_S", 100.0)  # or those that wait for their turn would be asked again
    heads = SilentHeads()

    async def scenario(drivers: Followed, _: Clock) -> None:
        for number in range(MANY):
            name = f"job-{number}"
            await drivers.follow(name, Follow(name, 1, "ml", name), TOKEN)
            await drivers.obey(Orders(submit=COMMAND), name)
        async with asyncio.timeout(20):
            while heads.most < MANY:
                await asyncio.sleep(0.2)

    with serving(heads) as url:
        with_drivers(url, scenario)


def test_a_driver_that_refuses_the_token_is_known_to_do_so_until_it_gets_another_one():
    heads = FakeHeads()

    async def scenario(drivers: Followed, clock: Clock) -> None:
        await drivers.obey(Orders(submit=COMMAND))
        await until(drivers, lambda driver: driver.status is not None)
        heads.head("ml").token = "another token of more than twenty characters"
        heads.head("ml").change(phase="train")
        refusing = await until(drivers, lambda driver: driver.refuses_since is not None)
        assert refusing.refuses_since == clock.now
        await drivers.follow("ml/sums", FOLLOW, "another token of more than twenty characters")
        await until(drivers, lambda driver: driver.status is not None and driver.refuses_since is None)

    with serving(heads) as url:
        with_drivers(url, scenario)


BLACK_HOLES = 20


def test_heads_that_accept_connections_and_never_answer_hold_up_no_other_head():
    """All orders are given before any is answered, and the healthy head has its own while all others wait."""

    async def run() -> None:
        silent = await asyncio.start_server(lambda reader, writer: asyncio.Event().wait(), "127.0.0.1", 0)
        hole = silent.sockets[0].getsockname()[1]
        async with open_session() as session:
            drivers = Followed(session, url, Clock())
            await drivers.follow("ml/sums", FOLLOW, TOKEN)
            drivers._resolve = lambda *_: f"http://127.0.0.1:{hole}"
            for number in range(BLACK_HOLES):
                name = f"ml/silent-{number}"
                await drivers.follow(name, Follow(name, 1, "ml", name), TOKEN)
                drivers.give(name, Orders(submit=COMMAND))
            await drivers.obey(Orders(submit=COMMAND))
            assert drivers.answered == [(Submit(COMMAND), True)]
            await drivers.close()
        silent.close()

    with serving(FakeHeads()) as url:
        asyncio.run(run())


@pytest.mark.parametrize("text", ["<html>", "[]", "{}", '{"status": "DREAMING"}'])
def test_what_is_not_rays_answer_is_no_answer(text: str):
    async def ask() -> None:
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=text)

        application = web.Application()
        application.add_routes([web.get("/api/jobs/x", answer)])
        async with TestServer(application) as server, aiohttp.ClientSession() as session:
            await RayJobs(session, str(server.make_url("")).rstrip("/"), TOKEN).look("x")

    with pytest.raises(DriverUnreachableError, match="not Ray's"):
        asyncio.run(ask())


def test_a_404_that_is_not_rays_does_not_make_a_driver_absent():
    async def ask(url: str) -> None:
        async with aiohttp.ClientSession() as session:
            await RayJobs(session, url.partition("/{")[0] + "/elsewhere", TOKEN).look("x")

    with serving(FakeHeads()) as url, pytest.raises(DriverUnreachableError, match="404"):
        asyncio.run(ask(url))
