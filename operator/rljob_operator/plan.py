"""From a job and what there is of it to what has to be done now. Pure: the operator's only decision.

    job, world, now ─► plan ─► Plan: status, delete, secret, apply, events, driver, requeue

A plan is carried out in the order of its fields, and the status comes first: it is the operator's memory, and it is
written only if nobody has changed the job since. Planning again on the world that a plan produces gives an empty plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api import recovery
from rljob_api.control import RunState, Scale
from rljob_api.control import Status as DriverStatus
from rljob_api.recovery import RestartEngine
from rljob_api.sections import Spec
from rljob_api.status import Status
from rljob_operator import attempts, desired, record
from rljob_operator.conditions import cluster_ready, conditions, others, refusal, refused
from rljob_operator.events import Event, events_between
from rljob_operator.identity import KIND, Manifest, service_name, submission_id
from rljob_operator.memory import Memory
from rljob_operator.rollout_pods import can_scale, rollout_pods
from rljob_operator.world import ALIVE, SILENT_S, Driver, DriverState, Job, World, is_deleting

PROGRESS_S = 15.0
"""at least so long between two writes of nothing but a job's progress [s]"""
PROGRESS_PER_S = 10
"""so many of them for all jobs together [1/s]; each takes an API server 30 ms of a core"""
LOOK_AGAIN_S = 30.0
"""a running job is looked at so often when nothing happens: silence is judged by the clock [s]"""


@dataclass(frozen=True, slots=True)
class Target:
    """An object to delete, if it is still the one that was seen."""

    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Whose driver the operator watches: desired state, the same in every plan until the next attempt."""

    submission_id: str
    attempt: int
    namespace: str
    service: str


@dataclass(frozen=True, slots=True)
class Orders:
    """What to tell Ray and the driver. Every one of them may be told again without harm."""

    submit: str | None = None
    """command line of the driver to start"""
    stop: bool = False
    """end the driver at once"""
    drain: bool = False
    """save and end"""
    engines: tuple[RestartEngine, ...] = ()
    scale: Scale | None = None
    """how many engines there shall be"""


NO_ORDERS = Orders()


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be done, in this order."""

    status: Status | None = None
    """to be written; None: it is right as it is"""
    delete: tuple[Target, ...] = ()
    secret: Manifest | None = None
    """to be made if there is none of its name"""
    apply: tuple[Manifest, ...] = ()
    events: tuple[Event, ...] = ()
    follow: Follow | None = None
    orders: Orders = NO_ORDERS
    requeue_after_s: float | None = None
    """look again after this time at the latest [s]; None: when something changes"""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do but to wait."""
        idle = not (self.delete or self.secret or self.apply or self.events)
        return self.status is None and idle and self.orders == NO_ORDERS


def plan(job: Job, world: World, now: float) -> Plan:
    """Return what has to be done about a job at `now` [unix s]."""
    if job.is_deleting:
        return Plan()  # the children go by their owner references
    old = Status.model_validate(job.status)
    if (why := refusal(job, world)) is not None:
        return _written(job, old, record.refused_status(old, job, refused(why), now), world, now, Plan())
    assert job.spec is not None
    remembered = record.memory_of(old)
    memory = attempts.advance(remembered, job, job.spec, world, now)
    driver = attempts.driver_of(memory.attempt, job, world) if memory.attempt else None
    todo = _actions(memory, job, job.spec, world, driver, now)
    if memory == remembered and _is_not_seen_yet(memory, driver, now):
        return todo  # the old status is right as far as anybody knows
    told = conditions(memory, job, job.spec, world, now)
    where = desired.directory(job, job.spec, world.defaults)
    new = record.status_of(old, job, job.spec, memory, driver, told, todo.orders.engines, where, now)
    return _written(job, old, new, world, now, todo)


def _is_not_seen_yet(memory: Memory, driver: Driver | None, now: float) -> bool:
    """Return whether this process has only begun to look at a driver that another one has seen running."""
    if memory.attempt is None or not memory.attempt.is_open or memory.attempt.started is None:
        return False
    if driver is None:
        return True
    answers = driver.state is not DriverState.UNKNOWN and (driver.status is not None or driver.state not in ALIVE)
    return not answers and now - driver.since < SILENT_S


def progress_s(running: int) -> float:
    """Return how long to wait between two writes of a job's progress while so many jobs run [s]."""
    return max(PROGRESS_S, running / PROGRESS_PER_S)


def _written(job: Job, old: Status, new: Status, world: World, now: float, todo: Plan) -> Plan:
    """Return the plan with the status and its events, unless nothing but progress is new and that was told lately."""
    wait_s = world.progress_due_at - now
    requeue = todo.requeue_after_s
    if new != old and wait_s > 0 and record.with_progress_of(new, old) == old:
        return Plan(
            delete=todo.delete,
            secret=todo.secret,
            apply=todo.apply,
            follow=todo.follow,
            orders=todo.orders,
            requeue_after_s=wait_s if requeue is None else min(wait_s, requeue),
        )
    return Plan(
        status=new if new != old else None,
        delete=todo.delete,
        secret=todo.secret,
        apply=todo.apply,
        follow=todo.follow,
        orders=todo.orders,
        events=tuple(events_between(old, new)),
        requeue_after_s=requeue,
    )


def _actions(memory: Memory, job: Job, spec: Spec, world: World, driver: Driver | None, now: float) -> Plan:
    """Return what has to be done besides telling about it."""
    if memory.outcome is not None:
        return _finished(memory, job, spec, world, now)
    attempt = memory.attempt
    if attempt is None or not attempt.is_open:
        return Plan(delete=tuple(_clusters_but(None, job, world)))
    return Plan(
        delete=tuple(_clusters_but(attempt.cluster, job, world)),
        secret=None if world.has_secret else desired.secret(job, world.fresh_token),
        apply=tuple(_missing(memory, job, spec, world, driver)),
        follow=_follow(memory, job, world, driver),
        orders=_orders(memory, job, spec, world, driver, now),
        requeue_after_s=_until_next_look(memory, spec, driver, now),
    )


def _finished(memory: Memory, job: Job, spec: Spec, world: World, now: float) -> Plan:
    """Free all pods at once, and delete the job itself when its time to live is over."""
    assert memory.outcome is not None
    clusters = tuple(_clusters_but(None, job, world))
    ttl_s = spec.scheduling.ttl_seconds_after_finished
    if ttl_s is None:
        return Plan(delete=clusters)
    left_s = memory.outcome.at + ttl_s - now
    if left_s > 0:
        return Plan(delete=clusters, requeue_after_s=left_s)
    return Plan(delete=(*clusters, Target(KIND, job.namespace, job.name, job.uid)))


def _clusters_but(kept: str | None, job: Job, world: World) -> Iterator[Target]:
    """Return the RayClusters of the job besides one, and the ConfigMaps that belong to them."""
    for child in world.children:
        name, kind = child["metadata"]["name"], child["kind"]
        if kind in ("RayCluster", "ConfigMap") and name != kept and not is_deleting(child):
            yield Target(kind, job.namespace, name, child["metadata"]["uid"])


def _missing(memory: Memory, job: Job, spec: Spec, world: World, driver: Driver | None) -> Iterator[Manifest]:
    """Return the children that are not there as they should be."""
    attempt = memory.attempt
    assert attempt is not None
    if others(attempt.cluster, world):
        return  # two clusters at once would want twice the GPUs, and two drivers would write the same checkpoints
    there = world.child("RayCluster", attempt.cluster)
    if there is not None and not desired.is_built_for(there, job):
        return  # built from another spec: it serves until its attempt has ended
    staying = world.pods_of(attempt.cluster)
    pods = rollout_pods(desired.num_rollout_pods(spec), spec, attempt, there, staying, driver)
    for wanted in desired.children(job, attempt.cluster, spec, world.defaults, pods):
        seen = world.child(wanted["kind"], wanted["metadata"]["name"])
        if seen is None or not (is_deleting(seen) or desired.contains(seen, wanted)):
            yield wanted


def _follow(memory: Memory, job: Job, world: World, driver: Driver | None) -> Follow | None:
    """Return whose driver to watch, as soon as there is a head to ask; once seen, it is not lost sight of."""
    attempt = memory.attempt
    assert attempt is not None
    has_head = any(pod.is_head and pod.is_ready for pod in world.pods_of(attempt.cluster))
    if not (has_head or attempt.started is not None or (driver is not None and driver.state in ALIVE)):
        return None
    name = submission_id(job.name, job.uid, attempt.number)
    return Follow(name, attempt.number, job.namespace, service_name(job.name, job.uid))


def _orders(memory: Memory, job: Job, spec: Spec, world: World, driver: Driver | None, now: float) -> Orders:
    attempt = memory.attempt
    assert attempt is not None
    if driver is None:
        return NO_ORDERS
    if attempt.verdict is not None:
        return Orders(stop=driver.state in ALIVE and not driver.is_stopping)
    if driver.state is DriverState.ABSENT:
        ready = cluster_ready(memory, spec, world).status == "True"
        due = attempt.started is None and now >= attempt.start_after and not spec.scheduling.suspend
        command = desired.entrypoint(job, attempt.number, spec, world.defaults)
        return Orders(submit=command if due and ready else None)
    if driver.state is not DriverState.RUNNING or driver.status is None:
        return NO_ORDERS
    if driver.status.state in (RunState.FINISHED, RunState.FAILED):
        return NO_ORDERS
    healing = recovery.decide(driver.status.engines, recovery.history_of(driver.status), spec.recovery, now)
    return Orders(
        drain=spec.scheduling.suspend and driver.status.state is not RunState.DRAINING,
        engines=tuple(order for order in healing if isinstance(order, RestartEngine)),
        scale=_scale(job, spec, driver.status, world.child("RayCluster", attempt.cluster)),
    )


def _scale(job: Job, spec: Spec, status: DriverStatus, cluster: Manifest | None) -> Scale | None:
    """Return how many engines to order, unless the driver works towards them already or cannot change their number."""
    if status.scale is None or status.scale.engines == spec.rollout.engines or not can_scale(spec):
        return None
    if cluster is None or not desired.is_built_for(cluster, job):
        return None  # its pods have another size: the next attempt gets others
    return Scale(generation=job.generation, engines=spec.rollout.engines)


def _until_next_look(memory: Memory, spec: Spec, driver: Driver | None, now: float) -> float:
    attempt = memory.attempt
    assert attempt is not None
    begun = driver.since if driver else now
    moments = [attempt.start_after - now, (attempts.deadline(memory, spec) or 0.0) - now, begun + SILENT_S - now]
    return min([LOOK_AGAIN_S, *(moment for moment in moments if moment > 0)])
