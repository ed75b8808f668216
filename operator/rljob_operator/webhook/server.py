"""The webhook's two ports: HTTPS for the API server, HTTP for kubelet and Prometheus."""

import json
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from rljob_operator.identity import Manifest
from rljob_operator.webhook import certificate
from rljob_operator.webhook.answer import Answer, review
from rljob_operator.webhook.certificate import Pair
from rljob_operator.webhook.metrics import Metrics

log = logging.getLogger(__name__)

PATH = "/validate"
LARGEST = 8 * 2**20
"""of a request: old and new object, each up to 1.5 MiB as text, and more with escapes [bytes]"""


class Server:
    """Serves between `start` and `close`; ready once it has a certificate."""

    def __init__(self, judge: Callable[[Manifest], Answer], metrics: Metrics) -> None:
        """`judge` takes the `request` of an AdmissionReview."""
        self._judge = judge
        self._metrics = metrics
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._has_certificate = False
        reviews = web.Application(client_max_size=LARGEST)
        reviews.add_routes([web.post(PATH, self._review)])
        pages = web.Application()
        pages.add_routes([web.get("/healthz", self._healthz), web.get("/metrics", self._show_metrics)])
        self._reviews, self._pages = (web.AppRunner(each, access_log=None) for each in (reviews, pages))

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

    async def start(self, host: str, port: int, pages: int) -> tuple[int, int]:
        """Listen, and return both ports; 0 means any free one."""
        for runner in (self._reviews, self._pages):
            await runner.setup()
        await web.TCPSite(self._reviews, host, port, ssl_context=self._context, shutdown_timeout=10.0).start()
        await web.TCPSite(self._pages, host, pages, shutdown_timeout=1.0).start()
        return self._reviews.addresses[0][1], self._pages.addresses[0][1]

    async def close(self) -> None:
        """Finish the requests that are being answered, and stop listening."""
        await self._reviews.cleanup()
        await self._pages.cleanup()

    async def _review(self, given: web.Request) -> web.Response:
        try:
            request: Manifest = json.loads(await given.read())["request"]
        except (ValueError, KeyError, TypeError):
            return web.Response(status=400, text="the body is no AdmissionReview\n")
        try:
            with self._metrics.seconds.time():
                found = self._judge(request)
        except Exception:  # failurePolicy decides about a request that we cannot judge
            self._metrics.reviews.labels("Error").inc()
            log.exception("action=review name=%s/%s outcome=failed", request.get("namespace"), request.get("name"))
            return web.Response(status=500, text="the review has failed; see the log of the webhook\n")
        self._metrics.reviews.labels(found.outcome).inc()
        if found.refusal is not None:
            place = f"{request.get('namespace')}/{request.get('name')}"
            log.info("action=refuse name=%s reason=%s", place, found.outcome)
        return web.json_response(review(request, found))

    async def _healthz(self, _: web.Request) -> web.Response:
        ready = self._has_certificate
        return web.Response(text="ok\n" if ready else "no certificate yet\n", status=200 if ready else 503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )
