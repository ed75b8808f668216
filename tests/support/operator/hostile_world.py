"""A cluster, heads and drivers in which every call may fail or lie, around the real reconciler; seeded, without sleep.

Two jobs share it. Faults concern `sums`; its neighbour `calm` has a driver that trains for ever. Time passes in steps,
and a step brings watches, KubeRay, Ray and the drivers up to date before the operator looks.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rljob_api.control import EngineState, Progress, RunState
from rljob_api.control import Status as Report
from rljob_api.exits import Exit
from rljob_api.status import Status
from rljob_operator.cache.cache import Cache
from rljob_operator.cache.watch_liveness import WatchLiveness
from rljob_operator.cache.workqueue import WorkQueue
from rljob_operator.cluster.cluster import Cluster, ClusterError, ConflictError
from rljob_operator.cluster.requests import Requests
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.execution.keys import Keys
from rljob_operator.identity import Manifest
from rljob_operator.metrics import Metrics
from rljob_operator.plan import Follow, Orders, Target
from rljob_operator.reconcile import Reconciler
from rljob_operator.status.events import Event
from rljob_operator.world.driver_news import RayAnswer, after_answer, after_no_answer, after_refusal, after_report
from rljob_operator.world.world import ALIVE, Driver, DriverState, Job
from support.operator.operator_world import DEFAULTS, NOW, raw_job, running

ERRORS = (
    ClusterError("403 denied by a policy", 403),
    ClusterError("422 Unsupported value", 422),
    ClusterError("413 too large", 413),
    ClusterError("500 failed calling webhook", 500),
    ClusterError("429 too many requests", 429),
    ClusterError("no answer", 0),
)
CALLS = ("status", "event", "secret", "Service", "NetworkPolicy", "ConfigMap", "RayCluster", "delete")
STEP_S = 12.0
GRACE_S = 30.0
LIES: tuple[dict[str, Any], ...] = (
    {"weight_version": -1},
    {"step": 3_000_000_000},
    {"eta_seconds": float("inf")},
    {"eta_seconds": float("nan")},
    {"reward_mean": float("nan")},
    {"last_step_seconds": {"train": 1e300}},
    {},
)


@dataclass
class Faults:
    """What goes wrong for `sums` now."""

    chance: float = 0.0
    """that a call fails"""
    for_good: set[str] = field(default_factory=set)
    """calls that fail always, of `CALLS`"""
    silence: float = 0.0
    """the chance that Ray does not answer"""
    denial: float = 0.0
    """the chance that a mesh answers 403"""
    lies: float = 0.0
    """the chance that a report is a lie"""
    lag: float = 0.0
    """the chance that a watch brings nothing in a step"""
    obeys: bool = True
    """whether drivers do what is ordered"""
    hangs: bool = False
    """whether drivers show no sign of life"""
    is_stuck: bool = False
    """whether a pod of each new RayCluster never starts"""
    is_edited: bool = False
    """whether somebody changes the job before each write of its status"""


@dataclass
class RayDriver:
    """A driver, as it is."""

    state: DriverState = DriverState.RUNNING
    exit_code: int | None = None


class HostileWorld:
    """Everything outside the operator, and the operator."""

    def __init__(self, seed: int, **sections: Any) -> None:
        self.random = random.Random(seed)
        self.now = NOW
        self.faults = Faults()
        self.jobs = {"ml/sums": raw_job(**sections), "ml/calm": raw_job("calm")}
        self.jobs["ml/calm"]["metadata"]["uid"] = "ca100000-0000-4000-8000-000000000000"
        self.objects: dict[tuple[str, str], Manifest] = {}
        self.secrets: set[str] = set()
        self.born: dict[str, float] = {}
        self.dying: dict[str, float] = {}
        self.in_ray: dict[str, RayDriver] = {}
        self.watched: dict[str, tuple[Follow, Driver, float]] = {}
        self.touched: list[str] = []
        self.errors: list[Exception] = []
        self._versions = itertools.count(1)
        self._heartbeats = itertools.count(int(NOW))
        for key, raw in self.jobs.items():
            self.jobs[key] = self._versioned(raw)
        self.restart()

    def restart(self) -> None:
        """Another operator takes over: it knows what is stored."""
        self.cache, self.watched = Cache(), {}
        clock = lambda: self.now  # noqa: E731
        watch = WatchLiveness(clock)
        metrics = Metrics(self.cache, WorkQueue(clock), watch, Requests(), DEFAULTS.release)
        cluster, drivers = cast(Cluster, HostileCluster(self)), cast(Drivers, HostileDrivers(self))
        keys = Keys.of(b"k" * 32)
        self.reconciler = Reconciler(cluster, self.cache, drivers, watch, metrics, DEFAULTS, keys, clock)
        self._bring(is_late=False)

    async def step(self, seconds: float = STEP_S) -> None:
        """Let time pass, and let the operator look at both jobs."""
        self.now += seconds
        self._kuberay()
        self._bring(is_late=self.random.random() < self.faults.lag)
        for key in tuple(self.watched):
            self._ask(key)
        for key in self.jobs:
            self.touched.append(key)
            try:
                await self.reconciler.reconcile(key)
            except ClusterError as error:
                self.errors.append(error)

    async def run(self, seconds: float) -> None:
        """Let time pass in steps."""
        until = self.now + seconds
        while self.now < until:
            await self.step()

    def edit(self, **spec: Any) -> None:
        """Somebody changes the spec of `sums`."""
        raw = self.jobs["ml/sums"]
        metadata = {**raw["metadata"], "generation": raw["metadata"]["generation"] + 1}
        self.jobs["ml/sums"] = self._versioned({**raw, "metadata": metadata, "spec": {**raw["spec"], **spec}})

    def ends(self, exit_code: int) -> None:
        """The drivers of `sums` end."""
        for name, driver in self.in_ray.items():
            if name.startswith("sums") and driver.state in ALIVE:
                driver.state = DriverState.SUCCEEDED if exit_code == 0 else DriverState.FAILED
                driver.exit_code = exit_code

    @property
    def clusters(self) -> list[str]:
        """RayClusters of `sums`, which hold GPUs."""
        return [name for kind, name in self.objects if kind == "RayCluster" and name.startswith("sums")]

    @property
    def status(self) -> Manifest:
        status: Manifest = self.jobs["ml/sums"].get("status", {})
        return status

    @property
    def is_neighbour_well(self) -> bool:
        """Whether nothing has happened to `calm`."""
        status = self.jobs["ml/calm"]["status"]
        there = {kind for kind, name in self.objects if name.startswith("calm")}
        return (
            status["phase"] == "Training"
            and [attempt["number"] for attempt in status["attempts"]] == [1]
            and {"RayCluster", "ConfigMap", "Service", "NetworkPolicy"} <= there
            and self.in_ray["calm-ca100-attempt-1"].state is DriverState.RUNNING
        )

    def fails(self, call: str, name: str) -> ClusterError | None:
        """Return how a call fails; None: it does not."""
        if not name.startswith("sums"):
            assert self.touched[-1] == "ml/calm", f"{call} {name} in a look at {self.touched[-1]}"
            return None
        assert self.touched[-1] == "ml/sums", f"{call} {name} in a look at {self.touched[-1]}"
        if call in self.faults.for_good:
            return ERRORS[1] if call == "status" else ERRORS[0]
        return self.random.choice(ERRORS) if self.random.random() < self.faults.chance else None

    def _versioned(self, raw: Manifest) -> Manifest:
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(next(self._versions))}}

    def _kuberay(self) -> None:
        """KubeRay makes pods, kubelets start them, and what was deleted ends."""
        for name, at in tuple(self.dying.items()):
            if self.now >= at + GRACE_S:
                del self.dying[name]
                for key in [key for key, raw in self.objects.items() if key[0] == "Pod" and _cluster_of(raw) == name]:
                    del self.objects[key]
        for kind, name in tuple(self.objects):
            if kind == "RayCluster":
                self._pods_of(name, self.objects[kind, name])

    def _pods_of(self, cluster: str, raw: Manifest) -> None:
        groups = [
            ("headgroup", 1),
            *((each["groupName"], each["replicas"]) for each in raw["spec"]["workerGroupSpecs"]),
        ]
        born = self.born.setdefault(cluster, self.now)
        for group, replicas in groups:
            for i in range(replicas):
                stuck = self.faults.is_stuck and cluster.startswith("sums") and group == "rollout" and i == 0
                known = self.objects.get(("Pod", f"{cluster}-{group}-{i}"))
                is_ready = self.now > born + STEP_S and not stuck
                pod = _pod(cluster, group, i, raw["metadata"]["labels"]["rljob.dev/job"], is_ready)
                if known is None or _is_ready(known) is not is_ready:
                    self.objects["Pod", pod["metadata"]["name"]] = self._versioned(pod)

    def _bring(self, is_late: bool) -> None:
        """Bring the watches' events."""
        if is_late:
            return
        for raw in (*self.jobs.values(), *self.objects.values()):
            self.cache.put(raw)
        for kind in {"RLJob", "Pod", "RayCluster", "ConfigMap", "Service", "NetworkPolicy"}:
            there = [
                raw["metadata"]["uid"] for raw in (*self.jobs.values(), *self.objects.values()) if raw["kind"] == kind
            ]
            self.cache.remove_missing(kind, there, str(10**9))

    def _ask(self, key: str) -> None:
        """Ask Ray and the driver."""
        follow, driver, answered_at = self.watched[key]
        faults = self.faults if key == "ml/sums" else Faults()
        if self.random.random() < faults.denial:
            driver = after_refusal(after_no_answer(driver, answered_at, self.now), self.now)
        elif self.random.random() < faults.silence or not self._has_head(follow):
            driver = after_no_answer(driver, answered_at, self.now)
        else:
            known = self.in_ray.get(follow.submission_id, RayDriver(DriverState.ABSENT))
            driver, answered_at = after_answer(driver, RayAnswer(known.state, known.exit_code), self.now), self.now
        if driver.state is DriverState.RUNNING and not faults.hangs:
            report = self._report(follow, driver, self.random.random() < faults.lies)
            driver = after_report(driver, report, follow.attempt, self.now) or driver
        self.watched[key] = follow, driver, answered_at

    def _has_head(self, follow: Follow) -> bool:
        job = follow.submission_id.partition("-attempt-")[0]
        heads = (raw for (kind, name), raw in self.objects.items() if kind == "Pod" and name.startswith(f"{job}-"))
        return any("headgroup" in raw["metadata"]["name"] and _is_ready(raw) for raw in heads)

    def _report(self, follow: Follow, driver: Driver, is_lie: bool) -> Report:
        states = [self.random.choice(list(EngineState)) for _ in range(2)] if is_lie else [EngineState.HEALTHY] * 2
        state = driver.status.state if driver.status is not None else RunState.RUNNING
        report = running(*states, attempt=follow.attempt, state=state, heartbeat=float(next(self._heartbeats)))
        lie = self.random.choice(LIES) if is_lie else {}
        progress = Progress.model_construct(**{**dict(report.progress), **lie})
        return report.model_copy(update={"progress": progress})


class HostileCluster:
    """What `Cluster` promises the reconciler, over a `HostileWorld`."""

    def __init__(self, world: HostileWorld) -> None:
        self._world = world

    async def write_status(self, job: Job, status: Status) -> Manifest:
        world = self._world
        if world.faults.is_edited and job.key == "ml/sums":
            world.jobs[job.key] = world._versioned(world.jobs[job.key])
        stored = world.jobs[job.key]
        self._try("status", job.name)
        if stored["metadata"]["resourceVersion"] != job.resource_version:
            raise ConflictError("409 the object has been modified", 409)
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        world.jobs[job.key] = world._versioned({**stored, "status": body})
        self._lie("status", job.name)
        return world.jobs[job.key]

    async def apply(self, wanted: Manifest, force: bool) -> Manifest:
        world, kind, name = self._world, wanted["kind"], wanted["metadata"]["name"]
        self._try(kind, name)
        metadata = {**wanted["metadata"], "uid": f"{kind}-{name}"}
        world.objects[kind, name] = world._versioned({**wanted, "metadata": metadata})
        self._lie(kind, name)
        return world.objects[kind, name]

    async def delete(self, target: Target) -> None:
        world = self._world
        self._try("delete", target.name)
        if world.objects.pop((target.kind, target.name), None) is not None and target.kind == "RayCluster":
            world.dying[target.name] = world.now
            for name in [name for name in world.in_ray if _attempt_on(name, target.name)]:
                world.in_ray.pop(name)
        world.secrets.discard(target.name)

    async def create_secret(self, wanted: Manifest) -> Manifest:
        name = wanted["metadata"]["name"]
        self._try("secret", name)
        if name in self._world.secrets:
            raise ConflictError("409 it exists", 409)
        self._world.secrets.add(name)
        return wanted

    async def read_secret(self, namespace: str, name: str) -> Manifest | None:
        self._try("secret", name)
        return {} if name in self._world.secrets else None

    async def pod_events(self, namespace: str, pod: str) -> Sequence[Manifest]:
        self._try("event", pod)
        return []

    async def read_lease(self, namespace: str, name: str) -> Manifest | None:
        return None

    async def record(self, job: Job, event: Event) -> None:
        self._try("event", job.name)

    def _try(self, call: str, name: str) -> None:
        error = self._world.fails(call, name)
        if error is not None and error.status != 0:
            raise error

    def _lie(self, call: str, name: str) -> None:
        """Lose the answer to a request that was carried out."""
        if self._world.random.random() < self._world.faults.chance and name.startswith("sums"):
            raise ERRORS[-1]


class HostileDrivers:
    """What `Drivers` promises the reconciler, over a `HostileWorld`."""

    def __init__(self, world: HostileWorld) -> None:
        self._world = world

    @property
    def followed(self) -> int:
        return len(self._world.watched)

    def driver(self, key: str) -> Driver | None:
        return self._world.watched[key][1] if key in self._world.watched else None

    async def follow(self, key: str, wanted: Follow | None, token: str) -> None:
        world = self._world
        if wanted is None:
            world.watched.pop(key, None)
        elif key not in world.watched or world.watched[key][0] != wanted:
            world.watched[key] = wanted, Driver(wanted.submission_id, since=world.now), world.now

    def give(self, key: str, orders: Orders) -> None:
        world = self._world
        if key not in world.watched:
            return
        follow, driver, answered_at = world.watched[key]
        faults = world.faults if key == "ml/sums" else Faults()
        if world.random.random() < faults.silence:
            return  # the request did not arrive
        known = world.in_ray.get(follow.submission_id)
        if orders.submit is not None and known is None:
            world.in_ray[follow.submission_id] = RayDriver()
        if known is None or known.state not in ALIVE or not faults.obeys:
            return
        if orders.stop:
            known.state = DriverState.STOPPED
        if orders.drain:
            known.state, known.exit_code = DriverState.FAILED, int(Exit.PREEMPTED)
        world.watched[key] = follow, replace(driver, is_stopping=orders.stop), answered_at


def _attempt_on(submission: str, cluster: str) -> bool:
    """Return whether a driver is of the job of a RayCluster: it ends with the head."""
    return submission.partition("-attempt-")[0] == cluster.rpartition("-")[0]


def _cluster_of(pod: Manifest) -> str:
    name: str = pod["metadata"]["labels"]["ray.io/cluster"]
    return name


def _is_ready(pod: Manifest) -> bool:
    return bool(pod["status"]["conditions"][0]["status"] == "True")


def _pod(cluster: str, group: str, number: int, job: str, is_ready: bool) -> Manifest:
    name = f"{cluster}-{group}-{number}"
    labels = {
        "rljob.dev/job": job,
        "ray.io/cluster": cluster,
        "ray.io/node-type": "head" if group == "headgroup" else "worker",
        "ray.io/group": group,
    }
    metadata = {"name": name, "namespace": "ml", "uid": f"{name}-pod", "labels": labels}
    conditions = [{"type": "Ready", "status": "True" if is_ready else "False"}]
    spec = {"nodeName": "node-1"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"conditions": conditions}}
