"""What an API server answers to the command line, request by request, as a test says. No Kubernetes: for what the
command line asks for, and what it makes of each answer. tests/integration/operator has a real one.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from support.http_in_thread import served_in_thread

STDOUT, STDERR, ERROR = b"\x01", b"\x02", b"\x03"
"""channels of an exec"""


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any
    """of JSON; None: no body"""


@dataclass
class Answers:
    """What is answered, in turn, to each method and path; the last answer stays."""

    given: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    """of an exec: each begins with its channel"""
    stays_open: bool = False
    """whether an exec goes on after the frames"""

    def get(self, path: str, *values: Any) -> None:
        """Answer these values to GETs of a path."""
        self.given["GET", f"/{path}"] = [(200, value) for value in values]

    def refuse(self, method: str, path: str, status: int, body: Any) -> None:
        """Refuse a request."""
        self.given[method, f"/{path}"] = [(status, body)]

    @contextmanager
    def served(self, directory: Path, namespace: str = "ml") -> Iterator[Path]:
        """Serve; gives a kubeconfig."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        with served_in_thread(application) as url:
            yield kubeconfig(directory, url, namespace)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        body = json.loads(content) if content else None
        self.asked.append(Asked(request.method, request.path, request.query, request.headers, body))
        if request.path.endswith("/exec"):
            return await self._run(request)
        left = self.given.get((request.method, request.path))
        if left is None:
            return web.json_response(refusal(404, f"{request.path} not found"), status=404)
        status, value = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(value, str):  # from a proxy, or of another kind than JSON
            return web.Response(text=value, status=status)
        return web.json_response(value, status=status)

    async def _run(self, request: web.Request) -> web.StreamResponse:
        if (left := self.given.get((request.method, request.path))) is not None:
            return web.json_response(left[0][1], status=left[0][0])
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for frame in self.frames:
            await socket.send_bytes(frame)
        if self.stays_open:
            await socket.receive()
        await socket.close()
        return socket


def kubeconfig(directory: Path, url: str, namespace: str = "ml") -> Path:
    """Write a kubeconfig with the contexts `here` and `there`, which has no namespace."""
    contexts = [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}},
        {"name": "there", "context": {"cluster": "c", "user": "u"}},
    ]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "a token"}}],
        "contexts": contexts,
        "current-context": "here",
    }
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def refusal(code: int, message: str, **details: str) -> dict[str, Any]:
    """Return the Status with which an API server refuses."""
    return {"kind": "Status", "status": "Failure", "code": code, "message": message, "details": details}


def page(*items: Any, token: str = "") -> dict[str, Any]:
    """Return a page of a list."""
    return {"items": list(items), "metadata": {"continue": token} if token else {}}
