"""The Prometheus endpoint of the driver: `GET /metrics` on a separate port, without a token, for scrapers."""

from collections.abc import Callable

from aiohttp import web


class MetricsServer:
    """Serves what `render` returns (content type and body) between `start` and `close`."""

    def __init__(self, render: Callable[[], tuple[str, bytes]]) -> None:
        application = web.Application()
        application.add_routes([web.get("/metrics", self._metrics)])
        self._render = render
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, host: str, port: int) -> str:
        """Listen and return the URL; port 0 means any free one."""
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, shutdown_timeout=1.0).start()
        bound_host, bound_port = self._runner.addresses[0][:2]
        return f"http://{bound_host}:{bound_port}/metrics"

    async def close(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        content_type, body = self._render()
        return web.Response(body=body, headers={"Content-Type": content_type})
