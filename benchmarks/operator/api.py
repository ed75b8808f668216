"""A bare client of the API server: bytes out, bytes in. The other side of the comparison."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
from arena import NAMESPACE
from prometheus_client.parser import text_string_to_metric_families

from local_cluster.api_server import ApiServer
from local_cluster.health import trusting

T = TypeVar("T")
RLJOBS = f"/apis/rljob.dev/v1alpha1/namespaces/{NAMESPACE}/rljobs"
RAYCLUSTERS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
AT_ONCE = 16
"""requests that are under way at a time"""
NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_read=600)


class Api:
    """An administrator's connection."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def send(self, method: str, path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        """Send one request, and return the answer's body; raise RuntimeError if it is refused."""
        async with self._session.request(method, self._url + path, data=body, headers={"Content-Type": kind}) as answer:
            content = await answer.read()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {content[:500].decode(errors='replace')}")
            return content

    async def count(self, path: str) -> int:
        """Return how many objects there are."""
        page = json.loads(await self.send("GET", f"{path}?limit=1"))
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    async def watch(self, path: str, seen: Callable[[dict[str, Any]], None]) -> None:
        """Call `seen` with each event from now on, for ever."""
        version = json.loads(await self.send("GET", f"{path}?limit=1"))["metadata"]["resourceVersion"]
        where = f"{self._url}{path}?watch=1&resourceVersion={version}"
        async with self._session.get(where, timeout=NO_LIMIT) as stream:
            rest = b""
            async for chunk in stream.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    seen(json.loads(line))

    async def requests(self) -> dict[str, float]:
        """Return how many requests the API server has answered so far, by `VERB RESOURCE`."""
        text = (await self.send("GET", "/metrics")).decode()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name == "apiserver_request" else ():
                labels = sample.labels
                where = "/".join(part for part in (labels["resource"], labels["subresource"]) if part)
                if sample.name == "apiserver_request_total":
                    name = f"{labels['verb']} {where}"
                    found[name] = found.get(name, 0.0) + sample.value
        return found


@asynccontextmanager
async def connected(server: ApiServer) -> AsyncIterator[Api]:
    """Connect as an administrator."""
    admin = server.authority.client("benchmark", "benchmark", ["system:masters"])
    context: ssl.SSLContext = trusting(server.authority.own, admin)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0)) as session:
        yield Api(session, server.url)


async def all_of(work: Callable[[T], Awaitable[object]], items: Iterable[T], at_once: int = AT_ONCE) -> None:
    """Do the work on each of the items, so many at a time."""
    left = iter(items)

    async def one_after_the_other() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
