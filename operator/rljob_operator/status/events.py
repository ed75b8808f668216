"""Which transitions between two statuses become events. Pure.

Events are for people only. The status is written first, so a crash in between loses an event and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rljob_api.status import Condition, ConditionType, Status
from rljob_operator.world.claims import Reason

REPORTED = {
    ConditionType.ADMITTED: ("False",),
    ConditionType.CLUSTER_READY: ("True",),
    ConditionType.TRAINING: ("True",),
    ConditionType.DEGRADED: ("True",),
    ConditionType.SOUND: ("False",),
    ConditionType.SUCCEEDED: ("True",),
    ConditionType.FAILED: ("True",),
}
"""statuses of each condition that are reported as an event; the rest is in the status"""
WAITS = (Reason.QUEUED, Reason.PREEMPTED, Reason.NEVER_FITS)
"""reasons of QuotaReserved that are reported; most jobs get room at once"""
BAD = (
    (ConditionType.ADMITTED, "False"),
    (ConditionType.DEGRADED, "True"),
    (ConditionType.SOUND, "False"),
    (ConditionType.FAILED, "True"),
)


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes event about a job."""

    kind: Literal["Normal", "Warning"]
    action: str
    """what the operator did or saw, CamelCase"""
    reason: str
    note: str


def events_between(old: Status, new: Status) -> Iterator[Event]:
    """Return the events for the transition between two statuses."""
    before = {condition.type: (condition.status, condition.reason) for condition in old.conditions}
    for condition in new.conditions:
        if not _is_reported(condition):
            continue
        if before.get(condition.type) != (condition.status, condition.reason):
            bad = (condition.type, condition.status) in BAD or condition.reason == Reason.REFUSED_NOW
            yield Event("Warning" if bad else "Normal", condition.type, condition.reason, condition.message)
    done = {(step.time, step.action, step.target, step.cause) for step in old.recovery}
    for step in new.recovery:
        if (step.time, step.action, step.target, step.cause) not in done and step.action != "GiveUp":
            yield Event("Warning", step.action, step.action, f"{step.target}: {step.cause}")
    known = {attempt.number for attempt in old.attempts if attempt.ended is not None}
    for attempt in new.attempts:
        if attempt.failure is not None and attempt.number not in known:
            note = f"attempt {attempt.number}: {attempt.failure.title}. {attempt.failure.remedy}"
            yield Event("Warning", "Diagnose", attempt.failure.code, f"{note}. Seen: {attempt.failure.evidence}")
    resume = new.attempts[-1].resume if new.attempts else 0
    if old.attempts and resume > old.attempts[-1].resume:
        yield Event("Normal", "Resume", "Resumed", f"attempt {new.attempt} begins with a fresh budget of restarts")
    if new.began is not None and new.began != old.began:
        yield Event("Normal", "Begin", "Began", f"attempt {new.attempt} {new.began}; directory {new.directory}")
    if not old.attempts and new.attempt > 1:
        note = f"the status of the job was lost; it continues with attempt {new.attempt}"
        yield Event("Warning", "Rebuild", "StatusRebuilt", note)
    if old.engines and new.engines and old.engines.desired != new.engines.desired:
        yield Event("Normal", "Scale", "Scaled", f"engines: {old.engines.desired} -> {new.engines.desired}")
    if old.release is not None and new.release not in (None, old.release):
        yield Event(
            "Normal", "TakeOver", "TakenOver", f"the operator {new.release} acts on the job, {old.release} is gone"
        )
    if _is_suspended(new) and not _is_suspended(old):
        yield Event("Normal", "Suspend", "Suspended", "the job is suspended and its pods are freed")


def _is_reported(condition: Condition) -> bool:
    if condition.type is ConditionType.QUOTA_RESERVED:
        return condition.reason in WAITS
    return condition.status in REPORTED.get(condition.type, ()) or condition.reason == Reason.REFUSED_NOW


def _is_suspended(status: Status) -> bool:
    return status.phase == "Suspended"
