"""The operator's own HTTP port: /healthz and /metrics.

Metrics are written by a thread, and once for all scrapers that wait for them: thousands of jobs have 100,000 lines, and
the event loop has to renew a Lease.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web


class Probes:
    """Serves between `start` and `close`."""

    def __init__(self, is_alive: Callable[[], bool], metrics: Callable[[], bytes]) -> None:
        """`is_alive`: whether watch events arrive; `metrics` is called by another thread."""
        self._is_alive = is_alive
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._writing: asyncio.Future[bytes] | None = None
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/metrics", self._show_metrics),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; 0 means any free one."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, shutdown_timeout=1.0).start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _healthz(self, _: web.Request) -> web.Response:
        alive = self._is_alive()
        return web.Response(text="ok\n" if alive else "watch events do not arrive\n", status=200 if alive else 503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().run_in_executor(self._thread, self._metrics)
        text = await asyncio.shield(self._writing)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
