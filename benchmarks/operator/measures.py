"""The measurements. Each gets an arena of its own, so none works on what another has left behind.

bare      the writes of the operator, by a client that does nothing else: what this machine's API server takes
building  N jobs are there, the operator starts: until every RayCluster exists; then, without it, KubeRay makes the pods
joint     the same with KubeRay from the beginning, and jobs that are applied while both run
churn     N jobs train, and their drivers' statuses change all the time: how soon the operator does something
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from api import PODS, RAYCLUSTERS, RLJOBS, SERVICES, Api, all_of, connected
from arena import Arena, Shares, arena
from heads import written_at
from jobs import PODS_OF_JOB, create, writes

from support.operator.operator_process import OperatorProcess

POLL_S = 0.2
SETTLED_S = 60.0
LATEST_S = 1200.0
"""for anything to be reached"""
OURS = ("rljobs", "rayclusters", "configmaps", "services", "networkpolicies", "secrets", "events")
"""resources that only the operator reads and writes before KubeRay begins"""
DRIVER = "-driver"
"""end of the name of the Service that the operator makes"""
DELETIONS_TO_A_NEW_JOB = 10


@dataclass(frozen=True)
class Built:
    """How long it took until everything of N jobs was there."""

    jobs: int
    seconds: float
    cpu_s: Mapping[str, float]
    """by program"""
    requests: Mapping[str, float]
    """by verb and resource"""
    memory_mb: float = 0.0
    """the operator's at its most, resident"""


async def bare(num_jobs: int) -> Built:
    """Write what the operator writes, as fast as the API server takes it."""
    with arena(pods=0) as place:
        async with connected(place.server) as api:
            jobs = [writes(raw) for raw in await create(api, range(num_jobs))]
            await settled(place)

            async def one(todo: list[Any]) -> None:
                for write in todo:
                    await api.send(write.method, write.path, write.body, write.kind)

            shares, before, began = Shares(place, {"client": psutil.Process().pid}), await api.requests(), time.time()
            await all_of(one, jobs)
            seconds = time.time() - began
            return Built(num_jobs, seconds, shares.seconds(), since(before, await api.requests()))


async def building(num_jobs: int, kuberay_s: float, profile: Path | None = None) -> tuple[Built, Built]:
    """Measure the operator alone, and then KubeRay alone on what it has built, for so long at most."""
    with arena(pods=num_jobs * PODS_OF_JOB) as place:
        async with connected(place.server) as api:
            await create(api, range(num_jobs))
            await settled(place)
            ours = await _operator_alone(place, api, num_jobs, profile)
            await settled(place)
            return ours, await _kuberay_alone(place, api, num_jobs, kuberay_s)


async def _kuberay_alone(place: Arena, api: Api, num_jobs: int, longest_s: float) -> Built:
    shares, before, began = Shares(place, {}), await api.requests(), time.time()
    place.start_kuberay()
    pods = await reached(api, PODS, num_jobs * PODS_OF_JOB, longest_s)
    seconds = time.time() - began
    return Built(pods // PODS_OF_JOB, seconds, shares.seconds(), since(before, await api.requests()))


async def _operator_alone(place: Arena, api: Api, num_jobs: int, profile: Path | None) -> Built:
    before, began = await api.requests(), time.time()
    with place.operator(profile=profile) as operator:
        shares = Shares(place, {"operator": operator.pid})
        there = await reached(api, RAYCLUSTERS, num_jobs)
        seconds, cpu_s = time.time() - began, shares.seconds()
        await drained(operator)
        return Built(there, seconds, cpu_s, since(before, await api.requests()), peak_mb(operator))


@dataclass(frozen=True)
class Joint:
    """Jobs that are applied while both operators run."""

    jobs: int
    applied_s: float
    """until the API server had taken the last RLJob"""
    clusters_s: float
    """until the last RayCluster existed"""
    pods_s: float
    """until the last pod existed, or until the time for that was over"""
    with_pods: int
    """jobs whose pods existed then"""


async def joint(num_jobs: int, kuberay_s: float) -> Joint:
    """Apply jobs to a cluster in which both operators run already, and wait for pods for so long at most."""
    with arena(pods=num_jobs * PODS_OF_JOB) as place, place.operator():
        place.start_kuberay()
        async with connected(place.server) as api:
            began = time.time()
            applied_s, clusters_s, pods_s = await asyncio.gather(
                _until(began, create(api, range(num_jobs))),
                _until(began, reached(api, RAYCLUSTERS, num_jobs)),
                _until(began, reached(api, PODS, num_jobs * PODS_OF_JOB, kuberay_s)),
            )
            pods = await api.count(PODS)
            return Joint(num_jobs, applied_s, clusters_s, pods_s, pods // PODS_OF_JOB)


async def _until(began: float, work: Awaitable[object]) -> float:
    await work
    return time.time() - began


@dataclass(frozen=True)
class Churn:
    """What the operator does while N jobs train."""

    jobs: int
    seconds: float
    repaired_s: list[float]
    """from the deletion of a child until it is there again"""
    shown_s: list[float]
    """from a driver's news of a checkpoint until it is in the status"""
    built_s: list[float]
    """from a new job until its RayCluster is there"""
    away: int
    """deleted children that had not come back 5 s after the last deletion"""
    cpu_s: Mapping[str, float]
    requests: Mapping[str, float]
    memory_mb: float


async def churn(
    num_jobs: int, seconds: float, step_s: float, deletions_per_s: float, profile: Path | None = None
) -> Churn:
    """Measure how soon things happen while `num_jobs` train, each with another step every `step_s` [s]."""
    with arena(pods=(num_jobs + 1000) * PODS_OF_JOB) as place, busy_heads(step_s) as url:
        async with connected(place.server) as api:
            await create(api, range(num_jobs))
            place.start_kuberay()
            with place.operator(url, profile) as operator:
                await training(operator, num_jobs)
                await settled(place)
                return await _churn(place, api, operator, num_jobs, seconds, deletions_per_s)


async def _churn(
    place: Arena, api: Api, operator: OperatorProcess, num_jobs: int, seconds: float, deletions_per_s: float
) -> Churn:
    seen = Seen()
    async with watching(api, {SERVICES: seen.service, RLJOBS: seen.rljob, RAYCLUSTERS: seen.raycluster}):
        shares, before, began = Shares(place, {"operator": operator.pid}), await api.requests(), time.time()
        there = [item["metadata"]["name"] for item in json.loads(await api.send("GET", SERVICES))["items"]]
        services = [name for name in there if name.endswith(DRIVER)]  # the others are KubeRay's, and it repairs them
        victims = services[: int(seconds * deletions_per_s)]  # each once: who is away cannot be deleted
        for number, victim in enumerate(victims):
            await asyncio.sleep(max(0.0, began + number / deletions_per_s - time.time()))
            await api.send("DELETE", f"{SERVICES}/{victim}")
            if number % DELETIONS_TO_A_NEW_JOB == 0:
                await create(api, [num_jobs + number])
        cpu_s, requests, took_s = shares.seconds(), since(before, await api.requests()), time.time() - began
        await asyncio.sleep(5.0)
        memory_mb = peak_mb(operator)
        times = (seen.repaired_s, seen.shown_s, seen.built_s)
        return Churn(num_jobs, took_s, *times, len(seen.gone), cpu_s, requests, memory_mb)


class Seen:
    """What the watches have shown, with the moments at which they did."""

    def __init__(self) -> None:
        self.gone: dict[str, float] = {}
        self.repaired_s: list[float] = []
        self.shown_s: list[float] = []
        self.built_s: list[float] = []
        self._new: dict[str, float] = {}
        self._paths: dict[str, str] = {}

    def service(self, event: dict[str, Any]) -> None:
        key = event["object"]["metadata"]["name"]
        if event["type"] == "DELETED":
            self.gone[key] = time.time()
        elif event["type"] == "ADDED" and key in self.gone:
            self.repaired_s.append(time.time() - self.gone.pop(key))

    def rljob(self, event: dict[str, Any]) -> None:
        raw, now = event["object"], time.time()
        key = raw["metadata"]["name"]
        if event["type"] == "ADDED":
            self._new[key] = now
        path = raw.get("status", {}).get("lastCheckpoint", {}).get("path", "")
        if path and self._paths.get(key, path) != path:
            self.shown_s.append(now - written_at(path))
        self._paths[key] = path

    def raycluster(self, event: dict[str, Any]) -> None:
        job = event["object"]["metadata"]["labels"]["rljob.dev/job"]
        if event["type"] == "ADDED" and job in self._new:
            self.built_s.append(time.time() - self._new.pop(job))


@asynccontextmanager
async def watching(api: Api, watches: Mapping[str, Callable[[dict[str, Any]], None]]) -> AsyncIterator[None]:
    """Watch while the block runs."""
    tasks = [asyncio.create_task(api.watch(path, seen)) for path, seen in watches.items()]
    await asyncio.sleep(1.0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def busy_heads(step_s: float) -> Iterator[str]:
    """Run the fake heads; gives the value of the operator's `--service-url`."""
    program = [sys.executable, str(Path(__file__).with_name("heads.py")), "--step-s", str(step_s)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def reached(api: Api, path: str, wanted: int, longest_s: float = LATEST_S) -> int:
    """Return how many objects there are: so many, or fewer when the time is over."""
    deadline = time.monotonic() + longest_s
    while (there := await api.count(path)) < wanted and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
    return there


async def drained(operator: OperatorProcess) -> None:
    """Return when the operator has nothing to do that is due now."""
    process, busy_s = psutil.Process(operator.pid), 1.0
    while busy_s > 0.05:
        before = sum(process.cpu_times()[:2])
        await asyncio.sleep(2.0)
        busy_s = sum(process.cpu_times()[:2]) - before


async def settled(place: Arena) -> None:
    """Return when the controllers have nothing to do, or after a minute: while many jobs train they always have."""
    busy_s, latest = 2.0, time.monotonic() + SETTLED_S
    while busy_s > 0.4 and time.monotonic() < latest:
        shares = Shares(place, {})
        await asyncio.sleep(2.0)
        busy_s = sum(shares.seconds().values())


async def training(operator: OperatorProcess, wanted: int) -> None:
    """Return when so many jobs train."""
    deadline = time.monotonic() + LATEST_S
    text = ""
    while f'rljob_operator_jobs{{phase="Training"}} {wanted}.0' not in text:
        assert time.monotonic() < deadline, text
        await asyncio.sleep(1.0)
        with suppress(OSError):
            _, text = await asyncio.to_thread(operator.get, "/metrics")


def since(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return what has been added, of the operator's resources and without reading of its results by us."""
    added = {key: now[key] - before.get(key, 0.0) for key in now}
    return {key: count for key, count in added.items() if count and key.split()[1].split("/")[0] in OURS}


def peak_mb(operator: OperatorProcess) -> float:
    """Return the most memory that the operator has had [MB]."""
    status = Path(f"/proc/{operator.pid}/status").read_text()
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kib) * 1024 / 1e6
