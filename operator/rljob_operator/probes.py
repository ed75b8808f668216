"""The operator's own HTTP port: /healthz and /metrics."""

from collections.abc import Callable

from aiohttp import web


class Probes:
    """Serves between `start` and `close`."""

    def __init__(self, is_alive: Callable[[], bool], metrics: Callable[[], bytes]) -> None:
        """`is_alive`: whether watch events arrive."""
        self._is_alive = is_alive
        self._metrics = metrics
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

    async def _healthz(self, _: web.Request) -> web.Response:
        alive = self._is_alive()
        return web.Response(text="ok\n" if alive else "watch events do not arrive\n", status=200 if alive else 503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
