"""Many jobs in one queue of Kueue, whose part is played by a model; the real `plan` decides for each job. Time is
simulated, in rounds.

What the model of Kueue does, as Kueue does it for a ClusterQueue with one flavor and BestEffortFIFO:

- It suspends a RayCluster that names the queue as soon as there is one.
- It admits by priority, then by age; one that does not fit lets later ones pass.
- For one of a higher priority it evicts of the lower ones the newest; others are evicted now and then, as by a check.
- An evicted job keeps its quota until its pods are gone, and keeps its age; an ended one until its RayCluster is.
- It deactivates a Workload that a check has rejected: that one has no quota and comes never.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from local_cluster.kubectl import Manifest
from rljob_operator.world.kueue import Workload
from rljob_operator.world.world import DriverState
from support.operator.operator_world import DEFAULTS, NOW, Surroundings, running

WITH_KUEUE = replace(DEFAULTS, has_kueue=True)
ROUND_S = 60.0
SETTLED = 6
"""plans after an event of a job, until there is nothing to do; more would be a loop"""


@dataclass
class Member:
    """One job, with Kueue's view of it."""

    around: Surroundings
    gpus: int
    priority: int
    born: float
    life: int
    """rounds of training until it ends"""
    is_rejected: bool = False
    is_admitted: bool = False
    """whether quota is held"""
    is_evicted: bool = False
    trained: int = 0
    evictions: int = 0

    @property
    def name(self) -> str:
        return str(self.around.raw["metadata"]["name"])

    @property
    def phase(self) -> str:
        return str(self.around.status.get("phase"))

    @property
    def has_pods(self) -> bool:
        return bool(self.around.observed.pods)

    def settle(self, now: float) -> None:
        """Let the operator look until it has nothing to do."""
        self.around.now = now
        for _ in range(SETTLED):
            if self.around.step().is_empty:
                return
        raise AssertionError(f"{self.name}: still something to do after {SETTLED} plans")

    def show(self, is_suspended: bool, **workload: object) -> None:
        """Kueue writes `suspend` of the RayCluster, and its Workload."""
        for cluster in self.around.observed.rayclusters():
            cluster["spec"]["suspend"] = is_suspended
            shown = Workload(cluster["metadata"]["name"], **workload)  # type: ignore[arg-type]
            self.around.observed = replace(self.around.observed, workloads=(shown,))


@dataclass
class KueueFleet:
    """The jobs, and the quota that they share."""

    jobs: Sequence[Manifest]
    quota: int
    seed: int = 0
    rejected: float = 0.0
    """part of the jobs that a check rejects"""
    evicted: float = 0.0
    """chance of a job that trains to be evicted in a round"""
    now: float = NOW
    members: list[Member] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    """jobs in the order of their first admission"""
    most_used: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        for number, raw in enumerate(self.jobs):
            around = Surroundings(raw)
            around.defaults = WITH_KUEUE
            training, draw = raw["spec"]["training"], self._random
            gpus, priority = training["gpusPerNode"] * training.get("nodes", 1), draw.choice((0, 0, 0, 1))
            member = Member(around, gpus, priority, self.now + number, draw.randrange(1, 4))
            member.is_rejected = draw.random() < self.rejected
            self.members.append(member)

    @property
    def used(self) -> int:
        """GPUs of admitted jobs."""
        return sum(each.gpus for each in self.members if each.is_admitted)

    def live(self) -> None:
        """Pass one round."""
        self.now += ROUND_S
        for each in self.members:
            if each.phase not in ("Succeeded", "Failed"):
                self._move(each)
        self._admit()
        self.most_used = max(self.most_used, self.used)

    def _move(self, each: Member) -> None:
        """Let happen to a job what happens in a round without Kueue's decision."""
        around = each.around
        if not around.observed.rayclusters():
            each.settle(self.now)
            self._suspend(each)
        elif each.is_evicted:  # its pods have saved, and are gone
            around.observed = replace(around.observed, pods=())
            around.driver(state=DriverState.UNKNOWN)
            each.is_admitted = each.is_evicted = False
            each.settle(self.now)
        elif each.is_admitted:
            self._train(each)

    def _suspend(self, each: Member) -> None:
        message = "its Workload is deactivated" if each.is_rejected else "insufficient quota"
        each.show(True, message=message, since=self.now)
        each.settle(self.now)

    def _train(self, each: Member) -> None:
        each.trained += 1
        if each.trained >= each.life:
            each.around.ends(0)
            each.settle(self.now)
            each.around.deletions_done()
            each.settle(self.now)
            each.is_admitted = bool(each.around.observed.rayclusters())
        elif self._random.random() < self.evicted:
            self._evict(each, "ChecksFailed")

    def _evict(self, each: Member, why: str) -> None:
        each.is_evicted, each.evictions = True, each.evictions + 1
        each.show(True, message="insufficient quota", since=self.now, eviction=f"Kueue has evicted the job ({why})")
        pods = tuple(replace(pod, is_deleting=True) for pod in each.around.observed.pods)
        each.around.observed = replace(each.around.observed, pods=pods)
        each.settle(self.now)

    def _admit(self) -> None:
        asks = [each for each in self.members if self._waits(each)]
        for each in sorted(asks, key=lambda each: (-each.priority, each.born)):
            if self.used + each.gpus <= self.quota:
                self._start(each)
            else:
                self._make_room(each)

    def _waits(self, each: Member) -> bool:
        return bool(each.around.observed.rayclusters()) and not each.is_admitted and not each.is_rejected

    def _make_room(self, wanted: Member) -> None:
        lower = [each for each in self.members if each.is_admitted and each.priority < wanted.priority]
        leaving = sum(each.gpus for each in self.members if each.is_evicted)
        for each in sorted(lower, key=lambda each: -each.born):
            if self.used - leaving + wanted.gpus <= self.quota:
                return
            if not each.is_evicted:
                self._evict(each, "Preempted")
                leaving += each.gpus

    def _start(self, each: Member) -> None:
        each.is_admitted = True
        if each.name not in self.first:
            self.first.append(each.name)
        each.show(False, reserved=True, reason="Admitted", message="it is admitted", admitted_at=self.now)
        each.settle(self.now)
        each.around.pods_ready()
        each.settle(self.now)
        each.around.ray_answers()
        each.settle(self.now)
        each.around.runs(running(checkpoint=2))
        each.settle(self.now)
