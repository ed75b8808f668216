"""The webhook's two ports: HTTPS for the API server, HTTP for kubelet and Prometheus."""

import asyncio
import hmac
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from rljob_operator.identity import Manifest
from rljob_operator.webhook import certificate
from rljob_operator.webhook.certificate import Pair
from rljob_operator.webhook.connections import HANDSHAKE_S, Connections
from rljob_operator.webhook.metrics import Metrics
from rljob_operator.webhook.review.answer import Answer
from rljob_operator.webhook.review.request import FAILED, Reviewed, received, reviewed, too_much
from rljob_operator.webhook.worker_processes import USUAL, BusyError, Limits, TooMuchError, Workers

log = logging.getLogger(__name__)

LARGEST = 8 * 2**20
"""of a request: old and new object, each up to 1.5 MiB as text, and more with escapes [bytes]"""
BODY_S = 5.0
"""for the body of a request, after its headers [s]"""
MOST_BODIES = 4
"""requests whose bodies are in memory at once; others wait before theirs is read"""


class Server:
    """Serves between `start` and `close`; ready once it has a certificate and a path."""

    def __init__(self, judge: Callable[[Manifest], Answer], metrics: Metrics, limits: Limits = USUAL) -> None:
        """`judge` takes the `request` of an AdmissionReview, in a worker with these limits."""
        self._judge = judge
        self._metrics = metrics
        self._workers = Workers(self._work, limits)
        self._bodies = asyncio.Semaphore(MOST_BODIES)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._has_certificate = False
        self._paths: tuple[str, ...] = ()
        reviews = web.Application(client_max_size=LARGEST)
        reviews.add_routes([web.route("*", "/{path:.*}", self._review)])
        pages = web.Application()
        pages.add_routes([web.get("/healthz", self._healthz), web.get("/metrics", self._show_metrics)])
        self._reviews = web.AppRunner(reviews, access_log=None, shutdown_timeout=10.0)
        self._pages = web.AppRunner(pages, access_log=None, shutdown_timeout=1.0)
        self._connections: Connections | None = None
        self._listening: asyncio.Server | None = None

    def use(self, pair: Pair) -> None:
        """Serve a certificate from the next connection on; raise ssl.SSLError if it is none."""
        with tempfile.TemporaryDirectory() as directory:
            chain, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
            for file, text in ((chain, pair.certificate), (key, pair.key)):
                file.touch(0o600)
                file.write_text(text)
            self._context.load_cert_chain(chain, key)
        self._metrics.expires.set(certificate.expires(pair.certificate))
        self._has_certificate = True

    def use_path(self, path: str) -> None:
        """Answer at a path from now on, and at the one before: the API server may not know the new one yet."""
        if path not in self._paths:
            self._paths = (path, *self._paths[:1])

    async def start(self, host: str, port: int, pages: int) -> tuple[int, int]:
        """Listen, and return both ports; 0 means any free one."""
        for runner in (self._reviews, self._pages):
            await runner.setup()
        assert self._reviews.server is not None, "setup makes it"
        self._connections = Connections(self._reviews.server)
        self._listening = await asyncio.get_running_loop().create_server(
            self._connections.accept, host, port, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
        )
        await web.TCPSite(self._pages, host, pages).start()
        return self._listening.sockets[0].getsockname()[1], self._pages.addresses[0][1]

    async def close(self) -> None:
        """Finish the requests that are being answered, and stop listening."""
        if self._listening is not None:
            self._listening.close()
        if self._connections is not None:
            self._connections.close()
        await self._reviews.cleanup()
        self._workers.close()
        await self._pages.cleanup()

    async def _review(self, given: web.Request) -> web.Response:
        if given.method != "POST" or not self._is_known(given.rel_url.raw_path):
            unknown = web.Response(status=404)
            unknown.force_close()
            return unknown
        if self._connections is not None and given.protocol is not None:
            self._connections.prove(given.protocol)
        async with self._bodies:
            try:
                async with asyncio.timeout(BODY_S):
                    body = await given.read()
            except TimeoutError:
                return web.Response(status=408, text="the body has not arrived in time\n")
            with self._metrics.seconds.time():
                found = await self._answered(body)
        self._metrics.reviews.labels(found.outcome).inc()
        if found.outcome not in ("Allowed", "Unchanged", "Error"):
            log.info("action=refuse name=%s reason=%s", found.place, found.outcome)
        kind = "application/json" if found.status == 200 else "text/plain"
        return web.Response(status=found.status, text=found.body, content_type=kind)

    def _is_known(self, path: str) -> bool:
        return any(hmac.compare_digest(path.encode(), known.encode()) for known in self._paths)

    async def _answered(self, body: bytes) -> Reviewed:
        try:
            return received(await self._workers.run(body))
        except TooMuchError as error:
            log.warning("action=review outcome=too-much: %s", error)
            return too_much(body, str(error))
        except BusyError as error:
            log.warning("action=review outcome=busy: %s", error)
            return Reviewed(503, "the webhook is busy; try again\n", "Busy")

    def _work(self, body: bytes) -> bytes:
        """Do all of a review, in the worker."""
        try:
            return reviewed(body, self._judge).sent()
        except MemoryError:
            raise
        except Exception:  # failurePolicy decides about a request that we cannot judge
            log.exception("action=review outcome=failed")
            return Reviewed(500, FAILED).sent()

    async def _healthz(self, _: web.Request) -> web.Response:
        lacks = "certificate" if not self._has_certificate else "path" if not self._paths else None
        return web.Response(text="ok\n") if lacks is None else web.Response(text=f"no {lacks} yet\n", status=503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )
