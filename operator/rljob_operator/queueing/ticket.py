"""A job as the queue sees it. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rljob_operator.capacity.demand import Pods


class Holding(StrEnum):
    """What a job has already."""

    NOTHING = "Nothing"
    RESERVED = "Reserved"
    LEAVING = "Leaving"
    """pods that end, without a reservation: they take room until they are gone"""
    FOREIGN = "Foreign"
    """pods whose queue is another one's, for example Kueue's"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A job, what it wants, and what it has."""

    key: str
    """NAMESPACE/NAME"""
    namespace: str
    created: float
    """[unix s]"""
    pods: tuple[Pods, ...]
    """all its pods: those that it wants, or holds"""
    gpus: int
    holding: Holding = Holding.NOTHING
    wants: bool = True
    """whether it would start if it could"""
    priority_class: str | None = None
    bound: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """nodes of its pods, by group; those of deleted pods too, until they are gone"""
    more: tuple[Pods, ...] = ()
    """pods that it wants besides those that it holds: it was scaled up"""
    engines: int | None = None
    """its engines with these; None: it cannot be scaled"""
    held_engines: int | None = None
    """its engines without these"""
    since: float | None = None
    """since when it holds a reservation [unix s]"""
    first_since: float | None = None
    """since when it has been first in the queue without finding room [unix s]"""
    preempted_for: str | None = None
    """the job for which it leaves, or left; None: it was not preempted"""
    due: float | None = None
    """when its pods were to be made [unix s]; None: not known"""
    has_started: bool = False
    """whether the driver of its newest attempt has started: its pods were all there"""
    revoked: int = 0
    """reservations that it gave back since it ran last, because its pods did not start"""
    retry_at: float = 0.0
    """until then it gets no pods for which there are no nodes [unix s]"""
    granted: str | None = None
    """digest of what its pods request; a reservation is for these"""

    @property
    def waits(self) -> bool:
        """Whether a pass could give it something."""
        return self.wants and (self.holding is not Holding.RESERVED or bool(self.more))


@dataclass(frozen=True, slots=True)
class Priority:
    """A PriorityClass."""

    value: int = 0
    preempts: bool = True
    """whether its jobs may preempt others"""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of the queue."""

    patience_s: float = 600.0
    """how long the first in the queue may be overtaken [s]; 0: never"""
    fair_share: bool = False
    """among jobs of one priority, the namespace goes first that holds the fewest GPUs"""
    priorities: Mapping[str, Priority] = field(default_factory=dict)
    """by name of the PriorityClass"""
    default: Priority = field(default_factory=Priority)
    """of jobs that name none"""

    def priority_of(self, ticket: Ticket) -> Priority:
        """Return the priority of a job; an unknown class has the value 0 and preempts no job."""
        if ticket.priority_class is None:
            return self.default
        return self.priorities.get(ticket.priority_class, Priority(0, preempts=False))
