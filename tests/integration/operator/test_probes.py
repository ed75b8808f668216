"""The operator's own pages."""

import asyncio

import aiohttp
import pytest

from rljob_operator.runtime.probes import Probes


@pytest.mark.parametrize(("is_alive", "status"), [(True, 200), (False, 503)])
def test_health_fails_when_watch_events_do_not_arrive(is_alive, status):
    async def ask() -> int:
        probes = Probes(lambda: is_alive, lambda: b"")
        port = await probes.start("127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession() as session:
                return (await session.get(f"http://127.0.0.1:{port}/healthz")).status
        finally:
            await probes.close()

    assert asyncio.run(ask()) == status
