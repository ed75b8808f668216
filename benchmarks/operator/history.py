"""What ended jobs cost: N of them, with the objects that an older operator left of each, beside some that train.

The ended jobs never ran here. Each gets by server-side apply the status that the operator's own plan gives a job that
has succeeded, so N of them are there in minutes.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from typing import Any

from api import RLJOBS, Api, all_of, connected
from arena import NAMESPACE, Arena, Shares, arena
from jobs import PODS_OF_JOB, create
from jobs import name as job_name
from measures import busy_heads, peak_mb, settled, training

from rljob_operator.cluster.cluster import path
from rljob_operator.cluster.requests import APPLY
from rljob_operator.identity import FIELD_MANAGER, JOB_LABEL, Manifest
from support.operator.operator_process import OperatorProcess
from support.operator.operator_world import Surroundings

SCRAPES = 50
LATEST_S = 1200.0
STEADY_S = 60.0
"""how long the operator's share of the cores is measured"""
RESYNC = "rljob_operator_resync_seconds"
LEFT = ("Service", "Secret", "NetworkPolicy", "ConfigMap")
"""kinds of the objects that an older operator left of a job that has ended"""


@dataclass(frozen=True)
class History:
    """The operator with `ended` jobs and `running` ones."""

    ended: int
    running: int
    training_s: float
    """from the operator's start until all running jobs train"""
    swept_s: float
    """from the operator's start until nothing of an ended job is left"""
    left: dict[str, int]
    """objects of ended jobs at the end, by kind"""
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
                left = await swept(api, ended)
                swept_s = time.time() - began
                return History(ended, running, training_s, swept_s, left, **await steady(place, operator))


async def end(api: Api, raw: dict[str, Any]) -> None:
    """Give a job the status of one that has succeeded, and the objects that it had while it trained."""
    name = raw["metadata"]["name"]
    there = Surroundings(raw).to_running()
    there.ends(0)
    there.step()
    there.deletions_done()
    there.step()
    status = {key: raw[key] for key in ("apiVersion", "kind")} | {
        "metadata": {"name": name},
        "status": {key: value for key, value in there.status.items() if key != "release"},
    }
    assert there.status["phase"] == "Succeeded", there.status
    await apply(api, f"{RLJOBS}/{name}/status", status)
    todo = Surroundings(raw).plan()
    assert todo.secret is not None
    for child in (todo.secret, *todo.apply):
        if child["kind"] in LEFT:
            await apply(api, f"/{path(child['kind'], NAMESPACE, child['metadata']['name'])}", child)


async def apply(api: Api, where: str, body: Manifest) -> None:
    """Apply an object as the operator does."""
    await api.send("PATCH", f"{where}?fieldManager={FIELD_MANAGER}&force=true", json.dumps(body).encode(), APPLY)


async def swept(api: Api, ended: int) -> dict[str, int]:
    """Return what is left of the ended jobs, by kind: nothing, or something when the time is over."""
    deadline = time.monotonic() + LATEST_S
    while any((left := await left_of_ended(api, ended)).values()) and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
    return left


async def left_of_ended(api: Api, ended: int) -> dict[str, int]:
    """Return how many objects of the first `ended` jobs there are, by kind."""
    names = {job_name(number) for number in range(ended)}
    found = {}
    for kind in LEFT:
        items = json.loads(await api.send("GET", f"/{path(kind, NAMESPACE)}"))["items"]
        found[kind] = sum(item["metadata"].get("labels", {}).get(JOB_LABEL) in names for item in items)
    return found


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
