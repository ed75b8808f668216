"""A load on a validating webhook that does not wait: requests come at fixed times.

A latency counts from the time at which a request was due, so a server that falls behind cannot hide it.
"""

import asyncio
import gc
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp
from api import NO_LIMIT
from arena import NAMESPACE

from support.operator.operator_world import raw_job

CONNECTIONS = 32
"""as few as an API server has to a webhook"""


@dataclass(frozen=True)
class Load:
    """What a load has met."""

    latencies_s: Sequence[float]
    failed: int
    """requests without an answer, or without the answer `allowed`"""

    def percentile(self, share: float) -> float:
        """Return the latency that this share of requests stays below [ms]."""
        return sorted(self.latencies_s)[min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))] * 1000


async def at_times(send: Callable[[int], Awaitable[None]], rate: float, seconds: float) -> list[float]:
    """Call `send` at fixed times, and return the latency of each call from the time at which it was due [s]."""
    began, total = time.perf_counter() + 0.1, int(rate * seconds)

    async def one(number: int) -> float:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await send(number)
        return time.perf_counter() - due

    gc.disable()  # a walk through the calls that wait takes a quarter of a second, and would count as a latency
    try:
        return list(await asyncio.gather(*(one(number) for number in range(total))))
    finally:
        gc.enable()


async def load(url: str, trusted: ssl.SSLContext, rate: float, seconds: float) -> Load:
    """Send reviews of valid jobs to a server, `rate` a second."""
    bodies, failed = reviews(), 0
    connector = aiohttp.TCPConnector(ssl=trusted, limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector, timeout=NO_LIMIT) as session:

        async def send(number: int) -> None:
            nonlocal failed
            headers = {"Content-Type": "application/json"}
            try:
                async with session.post(url, data=bodies[number % len(bodies)], headers=headers) as answer:
                    failed += not json.loads(await answer.read())["response"]["allowed"]
            except (aiohttp.ClientError, ValueError, KeyError):
                failed += 1

        latencies_s = await at_times(send, rate, seconds)
    return Load(latencies_s, failed)


async def until_answered(url: str, trusted: ssl.SSLContext, patience_s: float = 60.0) -> None:
    """Wait for a server that allows valid jobs."""
    deadline = time.monotonic() + patience_s
    while (await load(url, trusted, 5, 0.2)).failed:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{url} does not answer")
        await asyncio.sleep(0.5)


def reviews() -> list[bytes]:
    """Return requests as an API server sends them: jobs of several sizes."""
    kind = {"group": "rljob.dev", "version": "v1alpha1"}
    found = []
    for engines in (1, 2, 4, 8):
        for steps in (10, 100, 1000, 5000, 9000):
            raw = raw_job(training={"steps": steps}, rollout={"engines": engines}, runtime={"device": "Gpu"})
            request = {
                "uid": "u",
                "operation": "CREATE",
                "namespace": NAMESPACE,
                "dryRun": False,
                "object": raw,
                "kind": {**kind, "kind": "RLJob"},
                "resource": {**kind, "resource": "rljobs"},
                "name": raw["metadata"]["name"],
                "userInfo": {"username": "benchmark", "uid": "", "groups": []},
                "oldObject": None,
                "options": None,
            }
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
            found.append(json.dumps(review).encode())
    return found
