"""What is worth an event: the transitions between two statuses. Pure.

An event is a courtesy to people. The status is written first, so a crash in between loses an event and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rljob_api.status import ConditionType, Status

TOLD = {
    ConditionType.ADMITTED: ("False",),
    ConditionType.CLUSTER_READY: ("True",),
    ConditionType.TRAINING: ("True",),
    ConditionType.DEGRADED: ("True",),
    ConditionType.SOUND: ("False",),
    ConditionType.SUCCEEDED: ("True",),
    ConditionType.FAILED: ("True",),
}
"""what each condition becomes when that is news; everything else can be read in the status"""
BAD = (
    (ConditionType.ADMITTED, "False"),
    (ConditionType.DEGRADED, "True"),
    (ConditionType.SOUND, "False"),
    (ConditionType.FAILED, "True"),
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job."""

    kind: Literal["Normal", "Warning"]
    action: str
    """what the operator did or saw, CamelCase"""
    reason: str
    note: str


def events_between(old: Status, new: Status) -> Iterator[Event]:
    """Return what has happened between the two statuses."""
    before = {condition.type: (condition.status, condition.reason) for condition in old.conditions}
    for condition in new.conditions:
        if condition.status not in TOLD.get(condition.type, ()):
            continue
        if before.get(condition.type) != (condition.status, condition.reason):
            bad = (condition.type, condition.status) in BAD
            yield Event("Warning" if bad else "Normal", condition.type, condition.reason, condition.message)
    for step in new.recovery:
        if step not in old.recovery and step.action != "GiveUp":
            yield Event("Warning", step.action, step.action, f"{step.target}: {step.cause}")
    if old.engines and new.engines and old.engines.desired != new.engines.desired:
        yield Event("Normal", "Scale", "Scaled", f"engines: {old.engines.desired} -> {new.engines.desired}")
    if _is_suspended(new) and not _is_suspended(old):
        yield Event("Normal", "Suspend", "Suspended", "the job is suspended and its pods are freed")


def _is_suspended(status: Status) -> bool:
    return status.phase == "Suspended"
