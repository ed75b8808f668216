"""What the operator remembers of a job from one reconcile to the next. It lives in the job's status (`record.py`).

Times are whole unix seconds, because that is what a status can hold.
"""

from dataclasses import dataclass

from rljob_api import recovery
from rljob_api.exits import Exit


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the driver."""

    number: int
    """the first is 1"""
    cluster: str
    """name of the RayCluster it runs on"""
    start_after: int
    """not to be submitted earlier [unix s]"""
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

    @property
    def is_open(self) -> bool:
        return self.ended is None

    def for_policy(self) -> recovery.Attempt:
        """Return an ended attempt as the recovery policy wants it."""
        assert self.exit_code is not None, "the attempt has not ended"
        return recovery.Attempt(self.number, self.exit_code, self.checkpoint)


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
class Memory:
    """All attempts, oldest first, and the outcome once there is one."""

    attempts: tuple[Attempt, ...] = ()
    outcome: Outcome | None = None

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None
