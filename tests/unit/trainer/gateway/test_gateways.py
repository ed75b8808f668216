"""Gateways while weights are published: they hold what agents ask for, open no session, and hold up nothing."""

import asyncio

import aiohttp
import pytest

from rljob_trainer.engines.gate import Gate
from rljob_trainer.gateway.client import GatewayProcess, Gateways, num_gateways
from rljob_trainer.gateway.record import ADMIN_VARIABLE
from rljob_trainer.processes.ports import free_ports
from support.trainer.scripted_gateway import OPENING, SETTINGS
from support.trainer.scripted_model import Says
from support.waiting import becomes_true


class Served(GatewayProcess):
    """One that somebody else has started."""

    def __init__(self, url, session, directory):
        super().__init__(SETTINGS, directory / "gateway.log", session, "")
        self.url, self._keys, self._serves = url, {ADMIN_VARIABLE: "admin"}, True
        self.stops = 0

    async def stop(self):
        await super().stop()
        self.stops += 1


def played(url, directory, scene):
    async def begun():
        async with aiohttp.ClientSession() as session:
            process = Served(url, session, directory)
            await scene(Gateways((process,)), process)

    asyncio.run(begun())


def test_while_weights_are_published_requests_are_held_and_no_session_is_opened(serve, tmp_path):
    gate = Gate()
    script = serve([Says("4")], gate=gate)

    async def scene(gateways, process):
        assert await gateways.emptied(0.0)
        await gateways.close()
        asked = asyncio.create_task(asyncio.to_thread(script.ask, [{"role": "user", "content": "2 + 2 ="}]))
        opened = asyncio.create_task(gateways.open_session(OPENING))
        await becomes_true(lambda: script.session.begun == 1)
        assert await gateways.emptied()
        assert (script.router.asked, opened.done()) == ([], False)
        await gateways.open()
        assert (await asked).choices[0].message.content == "4"
        assert (await gateways.close_session(await opened)).turns == ()

    played(script.url, tmp_path, scene)


def test_a_request_at_an_engine_is_waited_for(serve, tmp_path):
    gate = Gate()
    script = serve([], gate=gate)

    async def scene(gateways, process):
        async with gate.passed():
            await gateways.close()
            assert not await gateways.emptied(0.0)
        assert await gateways.emptied(0.0)

    played(script.url, tmp_path, scene)


def test_a_gateway_that_does_not_answer_is_ended_once_and_holds_nothing(tmp_path):
    port, _ = free_ports("127.0.0.1")

    async def scene(gateways, process):
        await gateways.close()
        assert await gateways.emptied()
        await gateways.open()
        assert process.stops == 1

    played(f"http://127.0.0.1:{port}", tmp_path, scene)


@pytest.mark.parametrize(
    ("trajectories", "cores", "processes"),
    [
        (1, 1, 1),
        (64, 64, 1),
        (65, 64, 2),
        (256, 2, 1),
        (257, 2, 2),
        (512, 2, 2),
        (512, 8, 4),
        (512, 64, 8),
        (9999, 1, 8),
    ],
)
def test_there_are_processes_for_all_sessions_and_more_where_there_are_cores(trajectories, cores, processes):
    assert num_gateways(trajectories, cores) == processes
