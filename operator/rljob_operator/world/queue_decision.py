"""What the queue has decided about a job. Values only; `queueing` makes them, and `plan` acts on them."""

from dataclasses import dataclass, replace
from enum import StrEnum


class Standing(StrEnum):
    """Whether a job may have its pods."""

    RESERVED = "Reserved"
    """it holds what its pods need"""
    QUEUED = "Queued"
    PREEMPTED = "Preempted"
    """its room is for another job: it saves, ends, and is queued again"""
    REVOKED = "Revoked"
    """its pods have not got nodes in time: it gives its room back, and is queued again"""
    NEVER = "NeverFits"
    """it waits without blocking others: larger than the quota or the cluster"""
    UNDECIDED = "Undecided"
    """the queue has not looked at it yet; nothing is done about it until then"""


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """The decision about one job."""

    standing: Standing
    text: str = ""
    """what it waits for, or what it holds, in words"""
    position: int | None = None
    """among the jobs that wait, from 1; None: it does not wait"""
    first_since: float | None = None
    """since when it has been first in the queue without finding room [unix s]; None: it never was"""
    preempted_for: str | None = None
    """the job for which it is preempted"""
    engines: int | None = None
    """engines that it holds room for; None: as many as its spec says"""
    revoked: int = 0
    """reservations that it gave back since it ran last, because its pods did not start"""
    retry_at: float | None = None
    """until then it gets no pods for which there are no nodes [unix s]; None: it may get them"""
    granted: str | None = None
    """digest of what the pods request that it holds room for; None: it holds none, or that is not known"""

    @property
    def is_reserved(self) -> bool:
        return self.standing is Standing.RESERVED

    def differs_in_place_only(self, other: "QueueDecision") -> bool:
        """Return whether a job waits as before, at another position or for other numbers: nothing is done about it."""
        if self.position is None or other.position is None:
            return False
        return self == replace(other, text=self.text, position=self.position, first_since=self.first_since)
