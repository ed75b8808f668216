"""What ended jobs cost: N of them, each with a Service that an older operator left, beside some that train."""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

from api import RLJOBS, SERVICES, Api, all_of, connected
from arena import Arena, Shares, arena
from jobs import PODS_OF_JOB, create
from measures import DRIVER, busy_heads, peak_mb, settled, training

from rljob_operator.identity import FIELD_MANAGER
from rljob_operator.requests import APPLY
from support.operator.operator_process import OperatorProcess
from support.operator.operator_world import Surroundings

SCRAPES = 50
LATEST_S = 1200.0
STEADY_S = 60.0
"""how long the operator's share of the cores is measured"""
RESYNC = "rljob_operator_resync_seconds"


@dataclass(frozen=True)
class History:
    """The operator with `ended` jobs and `running` ones."""

    ended: int
    running: int
    training_s: float
    """from the operator's start until all running jobs train"""
    swept_s: float
    """from the operator's start until no Service of an ended job is left"""
    services: int
    """drivers' Services at the end"""
    memory_mb: float
    """at most, resident"""
    resync_s: float
    scrapes_s: list[float]
    scrape_bytes: int
    cores: float


async def history(ended: int, running: int, step_s: float) -> History:
    """Measure an operator that starts with so many ended jobs, and then gets so many that train."""
    with arena(pods=running * PODS_OF_JOB) as place, busy_heads(step_s) as url:
        async with connected(place.server) as api:
            await all_of(lambda raw: end(api, raw), await create(api, range(ended)))
            await create(api, range(ended, ended + running))
            place.start_kuberay()
            await settled(place)
            began = time.time()
            with place.operator(url) as operator:
                await training(operator, running)
                training_s = time.time() - began
                services = await swept(api, running)
                swept_s = time.time() - began
                return History(ended, running, training_s, swept_s, services, **await steady(place, operator))


async def end(api: Api, raw: dict[str, Any]) -> None:
    """Give a job the status of one that has succeeded, and the Service that it had while it trained."""
    there = Surroundings(raw).to_running()
    there.ends(0)
    there.step()
    there.deletions_done()
    there.step()
    status = {key: raw[key] for key in ("apiVersion", "kind")} | {
        "metadata": {"name": raw["metadata"]["name"]},
        "status": {name: value for name, value in there.status.items() if name != "release"},
    }
    assert there.status["phase"] == "Succeeded", there.status
    where = f"{RLJOBS}/{raw['metadata']['name']}/status?fieldManager={FIELD_MANAGER}&force=true"
    await api.send("PATCH", where, json.dumps(status).encode(), APPLY)
    (service,) = (each for each in Surroundings(raw).plan().apply if each["kind"] == "Service")
    where = f"{SERVICES}/{service['metadata']['name']}?fieldManager={FIELD_MANAGER}&force=true"
    await api.send("PATCH", where, json.dumps(service).encode(), APPLY)


async def swept(api: Api, running: int) -> int:
    """Return how many Services of drivers are left: those of the running jobs, or more when the time is over."""
    deadline = time.monotonic() + LATEST_S
    while (left := await drivers_services(api)) > running and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
    return left


async def drivers_services(api: Api) -> int:
    names = (item["metadata"]["name"] for item in json.loads(await api.send("GET", SERVICES))["items"])
    return sum(name.endswith(DRIVER) for name in names)


async def steady(place: Arena, operator: OperatorProcess) -> dict[str, Any]:
    """Measure an operator to which nothing new comes."""
    shares = Shares(place, {"operator": operator.pid})
    await asyncio.sleep(STEADY_S)
    cores = shares.seconds()["operator"] / STEADY_S
    scrapes_s, text = [], ""
    for _ in range(SCRAPES):
        began = time.perf_counter()
        _, text = await asyncio.to_thread(operator.get, "/metrics")
        scrapes_s.append(time.perf_counter() - began)
    resync = re.search(rf"^{RESYNC} (\S+)$", text, re.MULTILINE)
    assert resync is not None, text
    return {
        "memory_mb": peak_mb(operator),
        "resync_s": float(resync[1]),
        "scrapes_s": scrapes_s,
        "scrape_bytes": len(text.encode()),
        "cores": cores,
    }
