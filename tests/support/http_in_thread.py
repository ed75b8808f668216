"""Serves an application of aiohttp in a thread, for a test whose own code waits for answers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def served_in_thread(application: web.Application, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve until the context ends; gives the URL."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(application, access_log=None)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, host, 0, shutdown_timeout=0.1).start()
        bound: int = runner.addresses[0][1]
        return bound

    port = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="http-in-thread")
    thread.start()
    try:
        yield f"http://{host}:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(_close(runner), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close(runner: web.AppRunner) -> None:
    await runner.cleanup()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
