"""An API server in this process that keeps objects in memory and streams their changes. No Kubernetes: it admits
everything, and knows of each kind no more than its path. For the operator's process as a whole, whose parts have to
find each other; what a real API server does with their requests is for tests/integration/operator.
"""

import asyncio
import base64
import copy
import json
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from operator import itemgetter
from pathlib import Path
from typing import Any

from aiohttp import web

from rljob_operator.cluster.cluster import KINDS, OF_AGENT_SANDBOX, OF_KUEUE
from rljob_operator.identity import Manifest

OTHERS = {
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "LimitRange": ("api/v1", "limitranges"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
}
OF_CLUSTER = ("Namespace", "Node", "PriorityClass")
POLL_S = 0.01
"""between two looks of a watch [s]"""


@dataclass(frozen=True)
class Place:
    """What a path names."""

    kind: str
    namespace: str
    """empty: all"""
    name: str
    """empty: all"""
    part: str = ""
    """such as `status`"""

    def holds(self, raw: Manifest) -> bool:
        metadata = raw["metadata"]
        is_here = self.namespace in ("", metadata.get("namespace", ""))
        return raw["kind"] == self.kind and is_here and self.name in ("", metadata["name"])


class SmallApiServer:
    """The objects, and the requests that were made."""

    def __init__(self, *objects: Manifest) -> None:
        served = {kind: where for kind, where in KINDS.items() if kind not in (*OF_KUEUE, *OF_AGENT_SANDBOX)}
        self.kinds = {**served, **OTHERS}
        self.requests: list[tuple[str, str]] = []
        """method and path"""
        self.broken: set[str] = set()
        """selectors whose lists have no items, as from no API server"""
        self.depth = 1
        """levels of brackets that stand for the text `DEEP` in every answer"""
        self.refused: set[str] = set()
        """namespaces in which nothing may be read or written: 403"""
        self.failures: dict[str, int] = {}
        """by plural: how many requests that name no object are answered with 500"""
        self.waits_for: dict[str, Callable[[], bool]] = {}
        """by plural: what has to hold before a list is answered"""
        self.ahead_s = 0.0
        """what its clock is ahead of this process's"""
        self._version = 0
        self._objects: dict[Place, Manifest] = {}
        self._changes: list[tuple[int, str, Manifest]] = []
        for each in objects:
            self.put(each)

    def now(self) -> float:
        """Return what its clock shows [unix s]."""
        return time.time() + self.ahead_s

    def put(self, raw: Manifest) -> Manifest:
        """Create or replace an object, unless it is the same."""
        metadata = raw["metadata"]
        place = Place(raw["kind"], metadata.get("namespace", ""), metadata["name"])
        before = self._objects.get(place)
        uid = (before or raw)["metadata"].get("uid", f"uid-of-{place.kind}-{place.name}")
        version = before["metadata"]["resourceVersion"] if before else ""
        now = {**copy.deepcopy(raw), "metadata": {**metadata, "uid": uid, "resourceVersion": version}}
        if now != before:
            self._version += 1
            now["metadata"]["resourceVersion"] = str(self._version)
            self._objects[place] = now
            self._changes.append((self._version, "MODIFIED" if before else "ADDED", now))
        return now

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object."""
        return self._objects.get(Place(kind, namespace, name))

    def all(self, kind: str) -> list[Manifest]:
        """Return all objects of a kind."""
        return [each for place, each in self._objects.items() if place.kind == kind]

    def remove(self, place: Place) -> Manifest:
        """Delete an object at once."""
        gone = self._objects.pop(place)
        self._version += 1
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}}
        self._changes.append((self._version, "DELETED", gone))
        return gone

    @asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[Path]:
        """Serve on this loop; gives a kubeconfig."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        application.on_response_prepare.append(self._date)
        async with served(application) as url:
            config = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "small", "cluster": {"server": url}}],
                "users": [{"name": "operator", "user": {"token": "a token"}}],
                "contexts": [{"name": "small", "context": {"cluster": "small", "user": "operator"}}],
                "current-context": "small",
            }
            file = directory / "kubeconfig"
            file.write_text(json.dumps(config))
            yield file

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        where = request.match_info["path"]
        self.requests.append((request.method, where))
        if (found := self._discovery(where)) is not None:
            return web.json_response(found)
        place = self._place(where)
        if place is None:
            return _refusal(404, "the server could not find the requested resource")
        if place.namespace in self.refused:
            return _refusal(403, f'cannot read in the namespace "{place.namespace}"')
        if not place.name and self.failures.get(plural := self.kinds[place.kind][1], 0) > 0:
            self.failures[plural] -= 1
            return _refusal(500, "etcdserver: request timed out")
        if request.method == "GET" and not place.name:
            return await (self._watch if "watch" in request.query else self._list)(request, place)
        return await self._one(request, place)

    async def _list(self, request: web.Request, place: Place) -> web.StreamResponse:
        while not self.waits_for.get(self.kinds[place.kind][1], lambda: True)():
            await asyncio.sleep(POLL_S)
        selector = request.query.get("labelSelector", "")
        if selector in self.broken:
            return web.json_response({})
        items = [each for each in self._objects.values() if place.holds(each) and _is_selected(each, selector)]
        items, following = _page(items, int(request.query.get("limit") or 0), request.query.get("continue", ""))
        prefix = self.kinds[place.kind][0]
        api_version = prefix.partition("/")[2]
        metadata = {"resourceVersion": str(self._version), "continue": following}
        found = {"apiVersion": api_version, "kind": f"{place.kind}List", "metadata": metadata, "items": items}
        return web.Response(text=self._json(found), content_type="application/json")

    async def _date(self, _: web.Request, answer: web.StreamResponse) -> None:
        answer.headers["Date"] = formatdate(self.now(), usegmt=True)

    def _json(self, value: Manifest) -> str:
        return json.dumps(value).replace('"DEEP"', "[" * self.depth + "]" * self.depth)

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        since, selector = int(request.query["resourceVersion"]), request.query.get("labelSelector", "")
        while request.transport is not None and not request.transport.is_closing():
            for version, change, raw in self._changes[bisect_right(self._changes, since, key=itemgetter(0)) :]:
                since = version
                if place.holds(raw) and _is_selected(raw, selector):
                    await stream.write(self._json({"type": change, "object": raw}).encode() + b"\n")
            await asyncio.sleep(POLL_S)
        return stream

    async def _one(self, request: web.Request, place: Place) -> web.StreamResponse:
        content = await request.read()
        body: Manifest = json.loads(content) if content else {}
        if request.method == "POST":
            place = Place(place.kind, place.namespace, body["metadata"]["name"])
        known = self._objects.get(Place(place.kind, place.namespace, place.name))
        match request.method, known:
            case "POST", None:
                return web.json_response(self.put(_stored(place, body)), status=201)
            case "POST", _:
                return _refusal(409, "it exists")
            case "PATCH", None if not place.part:
                return web.json_response(self.put(_stored(place, body)), status=201)
            case _, None:
                return _refusal(404, f"{place.name} not found")
            case "GET", found:
                return web.json_response(found)
            case "DELETE", _:
                return web.json_response(self.remove(place))
        version = body["metadata"].get("resourceVersion", known["metadata"]["resourceVersion"])
        if version != known["metadata"]["resourceVersion"]:
            return _refusal(409, "the object has been modified")
        wanted = {**known, "status": body["status"]} if place.part == "status" else _stored(place, {**known, **body})
        wanted["metadata"] = {**known["metadata"], **wanted["metadata"]}
        return web.Response(text=self._json(self.put(wanted)), content_type="application/json")

    def _place(self, where: str) -> Place | None:
        for kind, (prefix, plural) in self.kinds.items():
            if not where.startswith(f"{prefix}/"):
                continue
            parts = where.removeprefix(f"{prefix}/").split("/")
            namespace = ""
            if parts[0] == "namespaces" and len(parts) > 2:
                namespace, parts = parts[1], parts[2:]
            if parts[0] == plural:
                return Place(kind, namespace, *[*parts[1:], "", ""][:2])
        return None

    def _discovery(self, where: str) -> Manifest | None:
        prefixes = {prefix for prefix, _ in self.kinds.values()}
        if where == "api":
            return {"versions": ["v1"]}
        if where == "apis":
            return {"groups": [*_groups(prefixes)]}
        if where not in prefixes:
            return None
        verbs = ["get", "list", "watch", "create", "patch", "delete"]
        kinds = {kind: plural for kind, (prefix, plural) in self.kinds.items() if prefix == where}
        return {
            "resources": [
                {"name": plural, "singularName": "", "namespaced": kind not in OF_CLUSTER, "kind": kind, "verbs": verbs}
                for kind, plural in kinds.items()
            ]
        }

    @property
    def listed_everywhere(self) -> list[str]:
        """The kinds of namespaced objects that were asked for in all namespaces."""
        whole = {f"{prefix}/{plural}": kind for kind, (prefix, plural) in self.kinds.items() if kind not in OF_CLUSTER}
        return sorted({whole[where] for method, where in self.requests if method == "GET" and where in whole})


def _groups(prefixes: set[str]) -> Iterator[Manifest]:
    for prefix in sorted(prefixes - {"api/v1"}):
        _, group, version = prefix.split("/")
        yield {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}


def _stored(place: Place, body: Manifest) -> Manifest:
    texts: dict[str, str] = body.get("stringData", {})
    data = {name: base64.b64encode(each.encode()).decode() for name, each in texts.items()}
    secret = {"data": data} if texts else {}
    given = {name: value for name, value in body.items() if name != "stringData"}
    where = {"namespace": place.namespace, "name": place.name}
    return {**given, **secret, "kind": place.kind, "metadata": {**body.get("metadata", {}), **where}}


def _page(objects: list[Manifest], limit: int, after: str) -> tuple[list[Manifest], str]:
    """Return so many objects after the one of this name, and the name after which the next page begins; 0: all."""
    named = sorted(((_name_of(each), each) for each in objects), key=lambda entry: entry[0])
    left = [(name, each) for name, each in named if name > after]
    page = left[:limit] if limit else left
    return [each for _, each in page], page[-1][0] if len(page) < len(left) else ""


def _is_selected(raw: Manifest, selector: str) -> bool:
    labels: dict[str, Any] = raw["metadata"].get("labels", {})
    for each in filter(None, selector.split(",")):
        name, is_compared, value = each.partition("=")
        if name not in labels or (is_compared and labels[name] != value):
            return False
    return True


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message, "code": status}, status=status)


@asynccontextmanager
async def served(application: web.Application) -> AsyncIterator[str]:
    """Serve on this loop; gives the URL."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _name_of(raw: Manifest) -> str:
    return f"{raw['metadata'].get('namespace', '')}/{raw['metadata']['name']}"
