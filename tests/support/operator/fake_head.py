"""A fake of what runs on a head, for tests of the control plane only: the Ray Jobs API and the control protocol of a
driver that trains nothing. Simulated pods run no programs, so somebody has to answer in their place.

It speaks for all heads: `http://127.0.0.1:PORT/NAMESPACE/SERVICE/...`. It refuses what Ray and the driver refuse:
a second driver of one id, and requests without the token.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from rljob_api.control import (
    AccuracyPoint,
    CurvePoint,
    DecidedBy,
    Decision,
    EngineOrder,
    EngineState,
    EngineStatus,
    Progress,
    RunState,
    SavedCheckpoint,
    Scale,
    Status,
    TokenRates,
    ray_token,
)
from support import secrets_in_logs
from support.http_in_thread import served_in_thread

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ENDINGS = {0: "SUCCEEDED"}


@dataclass
class Head:
    """One head and the driver on it."""

    jobs: dict[str, str] = field(default_factory=dict)
    """Ray's status of each submission"""
    exit_codes: dict[str, int] = field(default_factory=dict)
    entrypoints: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    """what each driver has written"""
    tokens: set[str] = field(default_factory=set)
    ray_tokens: set[str] = field(default_factory=set)
    """sent to Ray"""
    token: str | None = None
    """what the driver began with: the first one that it is sent; it accepts no other"""
    status: Status = field(default_factory=Status)
    drains: int = 0
    scales: list[Scale] = field(default_factory=list)
    """orders of a number of engines; the engines themselves are the test's to change"""

    @property
    def is_running(self) -> bool:
        """Whether a driver listens."""
        return any(state == "RUNNING" for state in self.jobs.values())

    def change(self, **changes: object) -> None:
        """The driver reports something new."""
        self.status = self.status.model_copy(update={**changes, "revision": self.status.revision + 1})

    def end(self, exit_code: int) -> None:
        """The driver ends."""
        for name in [name for name, state in self.jobs.items() if state in ("PENDING", "RUNNING")]:
            self.jobs[name] = ENDINGS.get(exit_code, "FAILED")
            self.exit_codes[name] = exit_code


def trains(attempt: int, number: int) -> Status:
    """Return the status of a driver that trains with so many engines."""
    engines = tuple(
        EngineStatus(name=f"engine-{i}", state=EngineState.HEALTHY, since=time.time(), version=3) for i in range(number)
    )
    curve = (
        CurvePoint(step=0, accuracy=0.1),
        *(CurvePoint(step=i, reward=round(0.05 * i + 0.1, 2)) for i in (1, 2, 3)),
    )
    phases = {"rollout": 3.9, "train": 2.2, "publish": 0.3, "report": 0.1}
    progress = Progress(
        step=3,
        steps=10,
        reward_mean=0.25,
        accuracy_sampled=(AccuracyPoint(step=0, accuracy=0.1),),
        curve=curve,
        tokens_per_second=TokenRates(rollout=21200.0, train=60000.0),
        last_step_seconds=phases,
        weight_version=3,
        eta_seconds=45.0,
    )
    saved = SavedCheckpoint(step=2, path="checkpoints/2", verified=True)
    return Status(
        attempt=attempt,
        revision=1,
        state=RunState.RUNNING,
        engines=engines,
        scale=Scale(generation=0, engines=number),
        progress=progress,
        checkpoint=saved,
    )


class FakeHeads:
    """All heads, by namespace and Service."""

    def __init__(self, ends_at_once: int | None = None) -> None:
        """With an exit code drivers end as soon as somebody has asked for their status twice."""
        self.heads: dict[tuple[str, str], Head] = {}
        self.submissions: list[str] = []
        self.refused: list[str] = []
        self.are_down = False
        self.drain_s = 0.5
        """how long a driver takes to save and end"""
        self.begins_as = RunState.RUNNING
        """what drivers report first that begin from now on"""
        self._ends_at_once = ends_at_once
        self._asked: dict[str, int] = {}

    def head(self, namespace: str, job: str = "") -> Head:
        """Return the one head of a namespace, or of one of its jobs."""
        (found,) = [
            head
            for (where, service), head in self.heads.items()
            if where == namespace and service.startswith(f"{job}-" if job else "")
        ]
        return found

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._unless_down])
        base = "/{namespace}/{service}"
        application.add_routes(
            [
                web.post(f"{base}/api/jobs/", self._submit),
                web.get(f"{base}/api/jobs/{{name}}", self._look),
                web.get(f"{base}/api/jobs/{{name}}/logs", self._logs),
                web.get("/api/jobs/{name}/logs", self._logs),
                web.post(f"{base}/api/jobs/{{name}}/stop", self._stop),
                web.get(f"{base}/v1/status", self._status),
                web.post(f"{base}/v1/drain", self._drain),
                web.put(f"{base}/v1/engines/{{name}}", self._engine),
                web.put(f"{base}/v1/scale", self._scale),
            ]
        )
        return application

    @web.middleware
    async def _unless_down(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.are_down:
            raise web.HTTPBadGateway()
        return await handler(request)

    def _head(self, request: web.Request) -> Head:
        key = request.match_info["namespace"], request.match_info["service"]
        return self.heads.setdefault(key, Head())

    async def _submit(self, request: web.Request) -> web.Response:
        head, asked = self._head(request), await request.json()
        name = asked["submission_id"]
        if name in head.jobs:
            self.refused.append(name)
            return web.Response(status=500, text=f"ValueError: Job with submission_id {name} already exists.")
        if any(state in ("PENDING", "RUNNING") for state in head.jobs.values()):
            self.refused.append(name)
            return web.Response(status=500, text="two drivers at once")
        head.jobs[name] = "RUNNING"
        head.token = None
        head.entrypoints.append(asked["entrypoint"])
        head.logs[name] = f"{name} starts\n{name} trains\n"
        self.submissions.append(name)
        attempt = re.search(r"--attempt (\d+)", asked["entrypoint"])
        engines = re.search(r"--engines (\d+)", asked["entrypoint"])
        assert attempt is not None
        status = trains(int(attempt[1]), int(engines[1]) if engines else 2)
        head.status = status.model_copy(update={"state": self.begins_as})
        return web.json_response({"submission_id": name, "job_id": name})

    async def _look(self, request: web.Request) -> web.Response:
        head, name = self._head(request), request.match_info["name"]
        head.ray_tokens.add(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if name not in head.jobs:
            return web.Response(status=404, text=f"Job {name} does not exist")
        return web.json_response({"status": head.jobs[name], "driver_exit_code": head.exit_codes.get(name)})

    async def _logs(self, request: web.Request) -> web.Response:
        """Also at the root: the API server's proxy knows no namespaces and Services in paths."""
        name = request.match_info["name"]
        for head in self.heads.values():
            if name in head.jobs:
                return web.json_response({"logs": head.logs.get(name, "")})
        return web.Response(status=404, text=f"Job {name} does not exist")

    async def _stop(self, request: web.Request) -> web.Response:
        self._head(request).jobs[request.match_info["name"]] = "STOPPED"
        return web.json_response({"stopped": True})

    async def _status(self, request: web.Request) -> web.Response:
        head = self._head(request)
        self._let_in(request, head)
        since, waited_s = request.query.get("since"), 0.0
        while head.is_running and since == str(head.status.revision) and waited_s < 2.0:
            await asyncio.sleep(0.05)
            waited_s += 0.05
        if not head.is_running:
            raise web.HTTPServiceUnavailable(text="no driver listens")
        name = next(name for name, state in head.jobs.items() if state != "")
        self._asked[name] = self._asked.get(name, 0) + 1
        if self._ends_at_once is not None and self._asked[name] > 1:
            head.end(self._ends_at_once)
        alive = head.status.model_copy(update={"heartbeat": time.time()})
        return web.Response(text=alive.model_dump_json(by_alias=True), content_type="application/json")

    async def _drain(self, request: web.Request) -> web.Response:
        head = self._head(request)
        self._let_in(request, head)
        head.drains += 1
        head.change(state=RunState.DRAINING)
        asyncio.get_running_loop().call_later(self.drain_s, head.end, 7)
        return web.json_response({"outcome": "Accepted"}, status=202)

    async def _engine(self, request: web.Request) -> web.Response:
        head, name = self._head(request), request.match_info["name"]
        self._let_in(request, head)
        order = EngineOrder.model_validate_json(await request.read())
        decision = Decision(
            time=time.time(),
            step=3,
            engine=name,
            generation=order.generation,
            by=DecidedBy.SUPERVISOR,
            reason=order.reason,
        )
        engines = tuple(
            engine.model_copy(update={"state": EngineState.HEALTHY, "generation": order.generation})
            if engine.name == name
            else engine
            for engine in head.status.engines
        )
        if any(engine.name == name and engine.generation >= order.generation for engine in head.status.engines):
            return web.json_response({"outcome": "Unchanged"})
        head.change(engines=engines, decisions=(*head.status.decisions, decision))
        return web.json_response({"outcome": "Accepted"}, status=202)

    async def _scale(self, request: web.Request) -> web.Response:
        head = self._head(request)
        self._let_in(request, head)
        order = Scale.model_validate_json(await request.read())
        if head.status.scale is not None and order.generation <= head.status.scale.generation:
            return web.json_response({"field": "generation", "value": "", "rule": "is old"}, status=409)
        head.scales.append(order)
        head.change(scale=order)
        return web.json_response({"outcome": "Accepted"}, status=202)

    def _let_in(self, request: web.Request, head: Head) -> None:
        sent = request.headers.get("Authorization", "")
        if not sent.startswith("Bearer ") or len(sent) < 20:
            raise web.HTTPUnauthorized()
        token = sent.removeprefix("Bearer ")
        head.token = head.token or token
        if token != head.token:
            raise web.HTTPUnauthorized()
        head.tokens.add(token)
        secrets_in_logs.note(token)
        secrets_in_logs.note(ray_token(token))


@contextmanager
def serving(heads: FakeHeads, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve in a thread; gives the value of the operator's `--service-url`."""
    with served_in_thread(heads.application(), host) as url:
        yield f"{url}/{{namespace}}/{{service}}"
