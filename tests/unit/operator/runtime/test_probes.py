"""The operator's HTTP port while thousands of jobs are being written down for a scrape."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from rljob_operator.runtime.probes import Probes
from support.waiting import becomes_true, others_run


class SlowMetrics:
    """Metrics that take until the test lets them end."""

    def __init__(self) -> None:
        self.begun = 0
        self.ends = threading.Event()

    def __call__(self) -> bytes:
        self.begun += 1
        assert self.ends.wait(60)
        return b"text %d" % self.begun


def served(metrics: Callable[[], bytes], scenario: Callable[[Callable[[str], Awaitable[str]]], Awaitable[Any]]) -> Any:
    async def live() -> Any:
        probes = Probes(lambda: True, metrics)
        port = await probes.start("127.0.0.1", 0)
        async with aiohttp.ClientSession() as session:

            async def get(path: str) -> str:
                async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                    return await answer.text()

            try:
                return await scenario(get)
            finally:
                await probes.close()

    return asyncio.run(live())


def test_the_loop_goes_on_while_metrics_are_written_and_they_are_written_once_for_all_who_wait() -> None:
    metrics = SlowMetrics()

    async def scenario(get: Callable[[str], Awaitable[str]]) -> tuple[str, ...]:
        scrapes = [asyncio.ensure_future(get("/metrics")) for _ in range(5)]
        await becomes_true(lambda: metrics.begun == 1)
        assert await get("/healthz") == "ok\n"
        await others_run()
        metrics.ends.set()
        found = await asyncio.gather(*scrapes)
        return *sorted(set(found)), await get("/metrics")

    first, *_, last = served(metrics, scenario)
    assert first == "text 1"
    assert last == f"text {metrics.begun}", "a later scrape is written anew"
    assert metrics.begun <= 3


def test_a_scraper_that_goes_away_takes_the_text_from_nobody() -> None:
    metrics = SlowMetrics()

    async def scenario(get: Callable[[str], Awaitable[str]]) -> str:
        gone, stays = asyncio.ensure_future(get("/metrics")), asyncio.ensure_future(get("/metrics"))
        await becomes_true(lambda: metrics.begun == 1)
        gone.cancel()
        await others_run()
        metrics.ends.set()
        return await stays

    assert served(metrics, scenario).startswith("text ")
