"""What the operator knows of a job's past. It lives in the job's status, which `record.py` reads and writes.

Times are whole unix seconds, because that is what a status can hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rljob_api import recovery
from rljob_api.adjustments import Adjustments, adjustments
from rljob_api.exits import Cause, Exit
from rljob_api.known_failure import KnownFailure
from rljob_api.sections import Spec
from rljob_api.status import NodeFate


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One start of the driver."""

    number: int
    """the first is 1"""
    cluster: str
    """name of the RayCluster it runs on"""
    start_after: int
    """not to be submitted earlier [unix s]"""
    asked: int | None = None
    """since when the job wanted it; None: since the end of the one before, or its creation [unix s]"""
    started: int | None = None
    """when Ray first showed its driver [unix s]"""
    verdict: Exit | None = None
    """why the operator ends it; None: it does not"""
    ended: int | None = None
    exit_code: int | None = None
    """as in `Exit`; negative: the signal that ended it"""
    reason: str = ""
    """why it ended, in words"""
    checkpoint: int | None = None
    """step of the newest checkpoint that is known"""
    step: int | None = None
    """steps done at its end"""
    resume: int = 0
    """how often the job had been resumed at its start"""
    cause: Cause | None = None
    """what its end counts as; None: it is open, or an older operator has recorded it"""
    failure: KnownFailure | None = None
    """the known failure that ended it; None: none was recognised"""
    ending_since: int | None = None
    """when the operator first ordered the driver to save and end, or to stop [unix s]; None: it did not"""
    nodes: Mapping[str, NodeFate] = field(default_factory=dict)
    """what became of its pods, by node"""
    note: str = ""
    """which nodes it avoids, and why, for an event when it begins. Not kept in a status"""
    is_abandoned: bool = False
    """whether the attempt was ended although its driver may run: its RayCluster is deleted. Not kept in a status"""

    @property
    def is_open(self) -> bool:
        return self.ended is None

    @property
    def has_never_started(self) -> bool:
        """Whether it was ended because its pods or its driver did not start in time."""
        return self.ended is not None and self.started is None and self.exit_code == Exit.STALLED

    def for_policy(self) -> recovery.EndedAttempt:
        """Return an ended attempt as the recovery policy wants it."""
        assert self.exit_code is not None, "the attempt has not ended"
        preempted = Cause.SUSPENDED if self.exit_code == Exit.PREEMPTED else Cause.APPLICATION
        return recovery.EndedAttempt(
            self.number, self.exit_code, self.checkpoint, step=self.step, cause=self.cause or preempted
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """What may show why an attempt has ended."""

    driver: str
    """the end of its driver's output, and its reason"""
    pods: str
    """what Kubernetes says of its pods, a line each"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job has ended."""

    succeeded: bool
    reason: str
    """CamelCase, for the condition"""
    message: str
    at: int
    """[unix s]"""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The newest attempts, oldest first, and the outcome once there is one."""

    attempts: tuple[AttemptRecord, ...] = ()
    outcome: Outcome | None = None
    started: int | None = None
    """when the first driver that ran was seen running; its attempt may be forgotten [unix s]"""
    undiagnosed: Evidence | None = None
    """of the newest attempt, which has ended: it stays open until this was read"""

    @property
    def attempt(self) -> AttemptRecord | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def has_stopped(self) -> bool:
        """Whether the newest attempt has ended and the job has not."""
        return self.outcome is None and self.attempt is not None and not self.attempt.is_open

    def adjustments(self, spec: Spec) -> Adjustments:
        """Return what the newest attempt changes after those before it that ran out of memory."""
        return adjustments(spec, [each.failure.code for each in self.attempts if each.failure is not None])

    def with_newest(self, attempt: AttemptRecord) -> "JobHistory":
        """Return the history with this as the newest attempt's record."""
        started = self.started if self.started is not None else attempt.started
        return replace(self, attempts=(*self.attempts[:-1], attempt), started=started)
