"""What is done about a job that cannot be planned: the least that its user, other jobs and the quota rely on. Pure.

    deleted, ended, preempted, suspended, past its deadline, driver ended ─► drain ─► stop ─► delete the RayCluster
    otherwise                                                             ─► follow the driver, restart its engines

It reads as little as it can, and needs neither the manifest's model nor the status', which may be what is broken. It
makes no pods. The next plan that succeeds explains what it finds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_api import recovery
from rljob_api.control import RunState
from rljob_api.recovery import RestartEngine
from rljob_api.sections import Recovery
from rljob_api.status import Status
from rljob_operator.attempts import escalation
from rljob_operator.children.tool_pods import OWNERS
from rljob_operator.identity import ATTEMPT_ANNOTATION, Manifest, attempt_of_cluster, service_name, submission_id
from rljob_operator.plan import LOOK_AGAIN_S, NO_ORDERS, Follow, Orders, Plan, Target
from rljob_operator.status.events import Event
from rljob_operator.status.record import failed_status
from rljob_operator.world.claims import Reason
from rljob_operator.world.queue_decision import QueueDecision, Standing
from rljob_operator.world.world import ALIVE, ENDED, Driver, DriverState, Observed, is_deleting, seconds

ENDED_S = 60.0
"""how long the pods of a driver that has ended are kept for a plan that succeeds [s]"""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a job has to end that cannot be planned, and since when that is known here."""

    why: str
    is_drained: bool
    """whether its driver may save first"""
    since: float
    """[unix s]"""


def ending_of(
    raw: Manifest, driver: Driver | None, decision: QueueDecision | None, before: Ending | None, now: float
) -> Ending | None:
    """Return why the job has to end; None: it does not. `before` is what this returned last."""
    found = next(_reasons(raw, driver, decision, now), None)
    if found is None:
        return None
    why, is_drained = found
    # Another reason gives no more time.
    return Ending(why, is_drained, before.since if before is not None else now)


def fallback_plan(raw: Manifest, observed: Observed, ending: Ending | None, why: str, now: float) -> Plan:
    """Return what is done about a job for which `plan` raises; `why` says how."""
    metadata, driver, attempt = raw["metadata"], observed.driver, _attempt(raw, observed.children)
    follow = None
    if attempt and any(not is_deleting(each) for each in observed.rayclusters()):
        name, uid, namespace = metadata["name"], metadata["uid"], metadata["namespace"]
        follow = Follow(submission_id(name, uid, attempt), attempt, namespace, service_name(name, uid))
    said = why if ending is None else f"{why}; it has to end: {ending.why}"
    usual = Plan(
        status=_named(raw, said, now),
        events=(Event("Warning", "Plan", Reason.OPERATOR_ERROR, said),),
        follow=follow,
        requeue_after_s=LOOK_AGAIN_S,
    )
    if ending is None:
        return replace(usual, orders=_healing(driver, now))
    late_s, drain_s = now - ending.since, escalation.SHORTEST_DRAIN_S if ending.is_drained else 0.0
    lives = driver is not None and driver.state in (*ALIVE, DriverState.UNKNOWN)
    is_over = late_s >= (drain_s + escalation.STOP_S if lives else ENDED_S)
    return replace(
        usual,
        delete=tuple(_pod_makers(metadata["namespace"], observed.children)) if is_over else (),
        orders=_ending_orders(driver, late_s >= drain_s),
    )


def _named(raw: Manifest, why: str, now: float) -> Status | None:
    """Return the status that says why the job cannot be planned; None: it says so, or is what cannot be read."""
    try:
        old = Status.model_validate(raw.get("status", {}))
    except ValueError:
        return None
    new = failed_status(old, raw["metadata"].get("generation", 1), why, now)
    return None if new == old else new


def _reasons(
    raw: Manifest, driver: Driver | None, decision: QueueDecision | None, now: float
) -> Iterator[tuple[str, bool]]:
    """Yield why the job has to end, and whether its driver may save first; the strongest reason first."""
    spec, status = _mapping(raw.get("spec")), _mapping(raw.get("status"))
    if "completionTime" in status:
        yield "the job has ended", False
    if driver is not None and driver.state in ENDED:
        yield "its driver has ended", False
    limit_s, started = _mapping(spec.get("scheduling")).get("activeDeadlineSeconds"), _time(status.get("startTime"))
    if isinstance(limit_s, int) and started is not None and now >= started + limit_s:
        yield "the active deadline has passed", False
    if spec.get("suspend") is True:
        yield "it is suspended", True
    if decision is not None and decision.standing not in (Standing.RESERVED, Standing.UNDECIDED):
        yield "the queue has no room for it", True


def _healing(driver: Driver | None, now: float) -> Orders:
    """Return the restarts of engines. While the operator polls its status, the driver itself restarts none."""
    if driver is None or driver.state is not DriverState.RUNNING or driver.status is None:
        return NO_ORDERS
    if driver.status.state in (RunState.FINISHED, RunState.FAILED):
        return NO_ORDERS
    history = recovery.history_of(driver.status)
    orders = recovery.decide(driver.status.engines, history, Recovery(), driver.clock(now))
    return Orders(engines=tuple(each for each in orders if isinstance(each, RestartEngine)))


def _ending_orders(driver: Driver | None, has_saved: bool) -> Orders:
    if driver is None or driver.state not in ALIVE:
        return NO_ORDERS
    if has_saved:
        return Orders(stop=not driver.is_stopping)
    return Orders(drain=driver.state is DriverState.RUNNING)


def _pod_makers(namespace: str, children: Sequence[Manifest]) -> Iterator[Target]:
    """Return what makes the job's pods."""
    for child in sorted(children, key=lambda each: each["kind"] != "RayCluster"):
        if child["kind"] in ("RayCluster", *OWNERS) and not is_deleting(child):
            yield Target(child["kind"], namespace, child["metadata"]["name"], child["metadata"]["uid"])


def _attempt(raw: Manifest, children: Sequence[Manifest]) -> int:
    """Return the newest attempt of which there is a trace; 0: none."""
    numbers = [_mapping(raw.get("status")).get("attempt")]
    for child in children:
        annotated = str(_mapping(child["metadata"].get("annotations")).get(ATTEMPT_ANNOTATION, ""))
        numbers.append(int(annotated) if annotated.isdecimal() else 0)
        numbers.append(attempt_of_cluster(child["metadata"]["name"]) if child["kind"] == "RayCluster" else 0)
    return max(each for each in (*numbers, 0) if isinstance(each, int))


def _time(text: Any) -> float | None:
    try:
        return seconds(text)
    except (TypeError, ValueError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
