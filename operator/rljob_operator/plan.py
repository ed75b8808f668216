"""Decides the next actions from a job and its observed state. Pure: the operator's only decision.

    job, World, now ─► admission ─► AdmittedJob ─► attempts.advance ─► JobHistory, AttemptView ─► Plan

The status is the operator's memory, and it is written only if the job has not changed since it was read. Planning
again on what a plan produces gives an empty plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rljob_api import recovery
from rljob_api.control import RunState, Scale
from rljob_api.control import Status as DriverStatus
from rljob_api.foreign_text import said
from rljob_api.recovery import RestartEngine
from rljob_api.status import Status, ToolPodOwner
from rljob_operator.attempts import attempts
from rljob_operator.attempts.attempt_view import AttemptView, attempt_view
from rljob_operator.attempts.avoidance import avoided
from rljob_operator.capacity.packing import Node
from rljob_operator.capacity.spare_nodes import has_room_without
from rljob_operator.children import children
from rljob_operator.children.pod_swaps import pod_swaps
from rljob_operator.children.rollout_pods import rollout_pods
from rljob_operator.children.tool_pods import OWNERS
from rljob_operator.identity import (
    KIND,
    TOOLS_LABEL,
    ClusterRef,
    Manifest,
    secret_name,
    service_name,
    submission_id,
    token_key,
)
from rljob_operator.job import pods, storage
from rljob_operator.job.admission import admission
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.job.cluster_shape import can_scale
from rljob_operator.status import record
from rljob_operator.status.conditions import conditions, pods_ready, refused
from rljob_operator.status.events import Event, events_between
from rljob_operator.status.start_deadline import with_start_deadline
from rljob_operator.status.waiting import Waiting, in_queue, waiting
from rljob_operator.world import kueue, run_claims
from rljob_operator.world.claims import Claim
from rljob_operator.world.driver_news import bare
from rljob_operator.world.history import Evidence, JobHistory, Outcome
from rljob_operator.world.pace import Pace
from rljob_operator.world.pod_stage import Stage
from rljob_operator.world.queue_decision import Standing
from rljob_operator.world.run_claims import RunClaim, Runs
from rljob_operator.world.world import ALIVE, SILENT_S, ControlToken, DriverState, Job, Observed, World, is_deleting

PROGRESS_S = 15.0
"""the shortest time between two writes of mere progress of a job [s]"""
PROGRESS_PER_S = 10
"""the same for all jobs together [1/s]; each write takes an API server 30 ms of a core"""
LOOK_AGAIN_S = 30.0
"""the longest time between two looks at a running job: only the clock reveals silence [s]"""
REPLACE_S = 10.0
"""the shortest life of a pod for tools that has failed: a node that refuses such pods gets few of them [s]"""


@dataclass(frozen=True, slots=True)
class Target:
    """An object to delete, if its uid is still the same."""

    kind: str
    namespace: str
    name: str
    uid: str | None = None
    """None: any; the name has a part of the job's uid"""


@dataclass(frozen=True, slots=True)
class Follow:
    """The driver to watch: desired state, the same in every plan until the next attempt."""

    submission_id: str
    attempt: int
    namespace: str
    service: str


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders for Ray and the driver. Repeating one is harmless."""

    submit: str | None = None
    """command line of the driver to start"""
    stop: bool = False
    """end the driver at once"""
    drain: bool = False
    """save and end"""
    engines: tuple[RestartEngine, ...] = ()
    scale: Scale | None = None
    """the number of engines to work towards"""


NO_ORDERS = Orders()


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be done; `execution.py` says in which order, and what waits for the status."""

    attempt: int = 0
    """the newest attempt; 0: none"""
    status: Status | None = None
    """to write; None: it has not changed"""
    delete: tuple[Target, ...] = ()
    secret: Manifest | None = None
    """to create unless it exists"""
    apply: tuple[Manifest, ...] = ()
    events: tuple[Event, ...] = ()
    follow: Follow | None = None
    orders: Orders = NO_ORDERS
    waiting: Waiting | None = None
    """what the job waits for before it trains; None: for nothing that is known"""
    left_out: str | None = None
    """why nothing was planned on what the driver says of itself; None: it was"""
    diagnose: Evidence | None = None
    """of the newest attempt, which has ended: nothing else is planned until it was read"""
    requeue_after_s: float | None = None
    """reconcile again after this time at the latest [s]; None: only when something changes"""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        idle = not (self.delete or self.secret or self.apply or self.events)
        return self.status is None and idle and self.orders == NO_ORDERS


def plan(
    job: Job,
    world: World,
    now: float,
    known: AdmittedJob | Claim | None = None,
    nodes: Sequence[Node] | None = None,
) -> Plan:
    """Return what has to be done about a job at `now` [unix s].

    `known` is what `admitted` returns for it, if it was called already. `nodes` are the cluster's; None: not known.
    """
    if job.is_deleting:
        return Plan()  # the children are deleted by their owner references
    if not job.is_ours:
        return Plan()
    if world.is_anothers(job):
        return Plan(requeue_after_s=LOOK_AGAIN_S)
    found = admitted(job, world) if known is None else known
    if isinstance(found, Claim):
        return _refused(job, found, world, now)
    found = found.with_queue_decision(world.queue_decision)
    found = replace(found, has_room_without=partial(has_room_without, found, nodes))
    decision = found.queue_decision
    is_undecided = found.is_held and decision is not None and decision.standing is Standing.UNDECIDED
    if is_undecided and found.status.completion_time is None:
        return Plan()  # the queue looks at it in a moment
    try:
        return _plan(found, world, now)
    except Exception as error:
        # A driver and its Ray say what their owner likes. Without that there is less to show; all deadlines hold.
        driver = world.observed.driver
        if driver is None or (barely := bare(driver)) == driver:
            raise
        less = replace(world, observed=replace(world.observed, driver=barely))
        return replace(_plan(found, less, now), left_out=said(error))


def admitted(job: Job, world: World) -> AdmittedJob | Claim:
    """Return the admitted job, with who holds its run directory, or why it cannot be admitted."""
    found = admission(job, world.defaults, world.observed.rayclusters())
    return found if isinstance(found, Claim) else replace(found, held_by=_holder(job, found, world.observed.runs))


def _holder(job: Job, admitted: AdmittedJob, runs: Runs) -> str | None:
    """Return the job that holds the run directory of one that has not begun, or has ended."""
    where = run_claims.place(job.namespace, *storage.where(admitted))
    if where is None or (job.has_begun and admitted.status.completion_time is None):
        return None
    mine = RunClaim(job.name, job.uid, where, has_begun=False, may_begin=True, created=job.created)
    found = run_claims.holder(mine, run_claims.overlapping(runs, where))
    return found.name if found is not None else None


def _refused(job: Job, why: Claim, world: World, now: float) -> Plan:
    """Return what has to be done about a job whose manifest is refused.

    One that has begun, and whose manifest cannot be read at all, keeps its pods until it has ended.
    """
    old = Status.model_validate(job.status)
    if record.history_of(old).outcome is not None:
        return Plan(delete=tuple(_all_children(job, world.observed, world.token.next_key)))
    if job.has_begun:
        new = record.objected_status(old, job.generation, why, now)
    else:
        new = record.refused_status(old, job.generation, refused(why), world.defaults.release, now)
    return _with_status(Plan(), old, new, world.pace, now)


def _plan(job: AdmittedJob, world: World, now: float) -> Plan:
    observed, known = world.observed, record.history_of(job.status)
    history = attempts.rebuilt(known, job, observed, now)
    attempt = _newest(history, None, job, observed, now)
    history = attempts.advance(history, attempt, job, observed.diagnosed, now)
    if history.undiagnosed is not None and history.attempt is not None:
        return Plan(attempt=history.attempt.number, diagnose=history.undiagnosed)
    attempt = _newest(history, attempt, job, observed, now)
    if attempt is not None:
        history = with_start_deadline(history, attempt, job, now)
        attempt = _newest(history, attempt, job, observed, now)
    if known.outcome is None and history.outcome is not None:
        history = record.with_cost(history, job, attempt.driver if attempt is not None else None)
    todo = _actions(history, attempt, job, observed, world.token, now)
    if known.outcome is not None and job.objection is not None:
        return todo  # what has ended stays as it was written
    if history == known and attempt is not None and _is_unseen(attempt, now):
        return todo  # nothing contradicts the old status yet
    found = conditions(history, attempt, job, now)
    driver = attempt.driver if attempt is not None else None
    swaps = pod_swaps(attempt, job) if attempt is not None and attempt.record.is_open else ()
    new = record.status_of(job, history, driver, found, (*todo.orders.engines, *swaps), now)
    return _with_status(todo, job.status, new, world.pace, now)


def _newest(
    history: JobHistory, before: AttemptView | None, job: AdmittedJob, observed: Observed, now: float
) -> AttemptView | None:
    """Return the newest attempt, which is observed once: as `before`, or now that it begins."""
    record = history.attempt
    if record is None:
        return None
    if before is not None and before.record.number == record.number:
        return replace(before, record=record)
    return attempt_view(record, job, observed, now - job.defaults.lost_pod_s)


def _is_unseen(attempt: AttemptView, now: float) -> bool:
    """Return whether this process has only begun to look at a driver that another one has seen running."""
    driver = attempt.driver
    if not attempt.record.is_open or attempt.record.started is None:
        return False
    if driver is None:
        return True
    answers = driver.state is not DriverState.UNKNOWN and (driver.status is not None or driver.state not in ALIVE)
    return not answers and now - driver.since < SILENT_S


def progress_s(jobs: int) -> float:
    """Return the time between two writes of a job's progress while this many jobs run, or wait in the queue [s]."""
    return max(PROGRESS_S, jobs / PROGRESS_PER_S)


def _with_status(todo: Plan, old: Status, new: Status, pace: Pace, now: float) -> Plan:
    """Return the plan with the new status and its events; mere progress waits until it is due, and so does flapping."""
    if new == old:
        return todo
    wait_s = pace.wait_s(old, new, now)
    if pace.progress_due_at > now and record.with_progress_of(new, old) == old:
        wait_s = pace.progress_due_at - now
    if wait_s > 0:
        requeue_s = todo.requeue_after_s
        return replace(todo, requeue_after_s=wait_s if requeue_s is None else min(wait_s, requeue_s))
    return replace(todo, status=new, events=tuple(events_between(old, new)))


def _actions(
    history: JobHistory,
    attempt: AttemptView | None,
    job: AdmittedJob,
    observed: Observed,
    token: ControlToken,
    now: float,
) -> Plan:
    """Return all actions except the status and its events."""
    if history.outcome is not None:
        return _finished(history.outcome, job, tuple(_all_children(job, observed, token.next_key)), now)
    if attempt is None or not attempt.record.is_open:
        look_again_s = LOOK_AGAIN_S if job.held_by is not None or history.has_stopped else None
        gone = tuple(_clusters_but(None, job, observed))
        return Plan(delete=gone, waiting=in_queue(job, now), requeue_after_s=look_again_s)
    due = attempts.deadline(history, job.spec)
    return Plan(
        attempt=attempt.record.number,
        delete=(
            *_clusters_but(attempt.record.cluster, job, observed),
            *_queued_tools(attempt, job, observed),
            *_failed_sandboxes(attempt, job, observed, now),
        ),
        secret=None if token.has_secret else children.secret(job, token.text, token.key),
        apply=tuple(_missing(attempt, job, observed, token.next_key)),
        follow=_follow(attempt, job),
        orders=_orders(attempt, history, job, now),
        waiting=waiting(attempt, job, now),
        requeue_after_s=_until_next_look(attempt, due, now),
    )


def _finished(outcome: Outcome, job: AdmittedJob, children_left: tuple[Target, ...], now: float) -> Plan:
    """Free all pods at once, and delete the job itself when its time to live is over."""
    ttl_s = job.spec.scheduling.ttl_seconds_after_finished
    if job.queue_decision is not None and job.queue_decision.position is not None:
        return Plan(delete=children_left, waiting=in_queue(job, now))  # it was resumed, and waits for room
    if ttl_s is None:
        return Plan(delete=children_left)
    left_s = outcome.at + ttl_s - now
    if left_s > 0:
        return Plan(delete=children_left, requeue_after_s=left_s)
    return Plan(delete=(*children_left, Target(KIND, job.namespace, job.name, job.uid)))


def _all_children(job: AdmittedJob | Job, observed: Observed, next_key: str | None) -> Iterator[Target]:
    """Return what a job that has ended still has: first its RayClusters; once no pod is left, all other children.

    The NetworkPolicy outlasts the pods that it protects. The Secret, which is not watched, goes before the Service,
    whose absence shows that both are gone.
    """
    yield from _clusters_but(None, job, observed)
    if observed.pods or observed.tool_pods or observed.rayclusters():
        return
    for child in observed.children:
        name, kind = child["metadata"]["name"], child["kind"]
        if kind in ("Service", "NetworkPolicy") and not is_deleting(child):
            if name == service_name(job.name, job.uid):
                for key in (None, next_key):  # those of other keys are deleted with the job
                    yield Target("Secret", job.namespace, secret_name(job.name, job.uid, key))
            yield Target(kind, job.namespace, name, child["metadata"]["uid"])


def _clusters_but(kept: str | None, job: AdmittedJob | Job, observed: Observed) -> Iterator[Target]:
    """Return the RayClusters of the job except one, with their ConfigMaps and what makes their pods for tools."""
    # The RayCluster first: others wait for the GPUs of its pods.
    for child in sorted(observed.children, key=lambda each: each["kind"] != "RayCluster"):
        name, kind = child["metadata"]["name"], child["kind"]
        belongs_to = child["metadata"]["labels"].get(TOOLS_LABEL) if kind in OWNERS else name
        if kind in ("RayCluster", "ConfigMap", *OWNERS) and belongs_to != kept and not is_deleting(child):
            yield Target(kind, job.namespace, name, child["metadata"]["uid"])


def _queued_tools(attempt: AttemptView, job: AdmittedJob, observed: Observed) -> Iterator[Target]:
    """Return what makes the pods for tools of a job in Kueue's queue.

    One that is evicted keeps them until its other pods are gone: the driver may call tools until it has saved.
    """
    if not attempt.is_suspended or attempt.has_pods:
        return
    for child in observed.children:
        if child["kind"] in OWNERS and not is_deleting(child):
            yield Target(child["kind"], job.namespace, child["metadata"]["name"], child["metadata"]["uid"])


def _failed_sandboxes(attempt: AttemptView, job: AdmittedJob, observed: Observed, now: float) -> Iterator[Target]:
    """Return the Sandboxes whose pod has failed, by an eviction for example; they are made again.

    agent-sandbox up to 1.0 at least keeps such a pod (kubernetes-sigs/agent-sandbox#729). A StatefulSet replaces it.
    """
    failed = {
        pod.name
        for pod in attempt.tool_pods
        if pod.stage is not None and pod.stage.stage is Stage.FAILED and now - pod.created >= REPLACE_S
    }
    for child in observed.children:
        name, kind = child["metadata"]["name"], child["kind"]
        if kind == ToolPodOwner.SANDBOX and name in failed and not is_deleting(child):
            yield Target(kind, job.namespace, name, child["metadata"]["uid"])


def _missing(attempt: AttemptView, job: AdmittedJob, observed: Observed, next_key: str | None) -> Iterator[Manifest]:
    """Return the children that are absent or differ from what we want."""
    if attempt.others:
        return  # two clusters at once would want twice the GPUs, and two drivers would write the same checkpoints
    if not job.can_build or (attempt.cluster is not None and not attempt.is_built_for_spec):
        # Built from another spec: it serves until its attempt has ended, and has to be reached and fenced off so long.
        if attempt.cluster is not None:
            needed = children.around(job, attempt.record.cluster, attempt.record.number)
            yield from (each for each in needed if observed.child(each["kind"], each["metadata"]["name"]) is None)
        return
    swapped = [each.pod for each in pod_swaps(attempt, job)]
    cluster, size = _cluster(attempt, next_key), rollout_pods(attempt, job.spec, swapped)
    for wanted in children.children(job, cluster, attempt.record.number, size):
        seen = observed.child(wanted["kind"], wanted["metadata"]["name"])
        if wanted["kind"] in OWNERS and _is_queued(attempt, job):
            continue
        if seen is None and wanted["kind"] == ToolPodOwner.SANDBOX and _has_old_pod(wanted, observed):
            continue
        if seen is not None and wanted["kind"] == "RayCluster":
            wanted = kueue.kept(wanted, seen)
        if seen is None or not (is_deleting(seen) or children.is_as_wanted(seen, wanted)):
            yield wanted


def _is_queued(attempt: AttemptView, job: AdmittedJob) -> bool:
    """Return whether the job is in Kueue's queue, or will be as soon as its RayCluster is made."""
    return attempt.is_suspended or (attempt.cluster is None and job.spec.scheduling.queue is not None)


def _has_old_pod(sandbox: Manifest, observed: Observed) -> bool:
    """Return whether the pod of an earlier Sandbox of this name is left; agent-sandbox takes no pod of another one."""
    return any(pod.name == sandbox["metadata"]["name"] for pod in observed.tool_pods)


def _cluster(attempt: AttemptView, new_key: str | None) -> ClusterRef:
    """Return the attempt's RayCluster with the tokens that it has; one that is made now gets those of `new_key`."""
    name, there = attempt.record.cluster, attempt.cluster
    if there is None:
        return ClusterRef(name, new_key, avoids=avoided(attempt.record))
    return ClusterRef(name, token_key(there), pods.has_ray_authentication(there), avoided(attempt.record))


def _follow(attempt: AttemptView, job: AdmittedJob) -> Follow | None:
    """Return the driver to watch, once there is a head to ask; a driver that was seen stays watched."""
    number = attempt.record.number
    if not (attempt.has_ready_head or attempt.record.started is not None or attempt.has_live_driver):
        return None
    name = submission_id(job.name, job.uid, number)
    return Follow(name, number, job.namespace, service_name(job.name, job.uid))


def _orders(attempt: AttemptView, history: JobHistory, job: AdmittedJob, now: float) -> Orders:
    driver, spec = attempt.driver, job.spec
    if driver is None or attempt.is_suspended:
        return NO_ORDERS  # while its pods are evicted, their own hooks let it save
    if attempt.record.verdict is not None:
        return Orders(stop=driver.state in ALIVE and not driver.is_stopping)
    if driver.state is DriverState.ABSENT:
        return _submission(attempt, history, job, now)
    if driver.state is not DriverState.RUNNING or driver.status is None:
        return NO_ORDERS
    if driver.status.state in (RunState.FINISHED, RunState.FAILED):
        return NO_ORDERS
    past = recovery.history_of(driver.status)
    healing = recovery.decide(driver.status.engines, past, spec.recovery, driver.clock(now))
    return Orders(
        drain=job.is_suspended and driver.status.state is not RunState.DRAINING,
        engines=tuple(order for order in healing if isinstance(order, RestartEngine)),
        scale=_scale(attempt, job, driver.status),
    )


def _submission(attempt: AttemptView, history: JobHistory, job: AdmittedJob, now: float) -> Orders:
    """Return the order to start the driver, when it is due and all pods are ready."""
    record = attempt.record
    if record.started is not None or now < record.start_after or job.is_suspended:
        return NO_ORDERS
    if pods_ready(attempt, job, now).status != "True":
        return NO_ORDERS
    return Orders(submit=children.entrypoint(job, record.cluster, record.number, history.adjustments(job.spec)))


def _scale(attempt: AttemptView, job: AdmittedJob, status: DriverStatus) -> Scale | None:
    """Return how many engines to order, unless the driver works towards them already or cannot change their number."""
    wanted = job.spec.rollout.engines
    if status.scale is None or status.scale.engines == wanted or not can_scale(job.spec):
        return None
    if not job.can_build or not attempt.is_built_for_spec:
        return None  # its pods have another size: the next attempt gets others
    return Scale(generation=job.generation, engines=wanted)


def _until_next_look(attempt: AttemptView, due: float | None, now: float) -> float:
    """Return how long to wait for the next moment that matters; `due` is the job's deadline [unix s]."""
    begun = attempt.driver.since if attempt.driver else now
    moments = [attempt.record.start_after - now, (due or 0.0) - now, begun + SILENT_S - now]
    return min([LOOK_AGAIN_S, *(moment for moment in moments if moment > 0)])
