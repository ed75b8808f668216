"""When a failed job is resumed in place, and which failures count after it. Pure.

spec.recovery.resumes is above that of the newest attempt ─► another attempt, with a fresh budget of restarts
"""

import re

from rljob_api.exits import Exit
from rljob_operator.job.admitted_job import AdmittedJob
from rljob_operator.world.history import AttemptRecord, JobHistory

LATER = re.compile(r"comes too late: attempt (\d+) of (\S+)")
"""in what a driver writes last when the run directory's fence has seen a later attempt"""


def resumes(job: AdmittedJob) -> int:
    """Return how often the author has resumed the job."""
    return job.spec.recovery.resumes or 0


def is_resumed(history: JobHistory, job: AdmittedJob) -> bool:
    """Return whether a job that has failed begins another attempt now."""
    if history.outcome is None or history.outcome.succeeded or history.attempt is None:
        return False
    return resumes(job) > history.attempt.resume and job.can_build and not job.is_suspended


def since_resumed(history: JobHistory) -> tuple[AttemptRecord, ...]:
    """Return the attempts since the job was resumed last; all, if it never was."""
    last = history.attempts[-1].resume if history.attempts else 0
    return tuple(attempt for attempt in history.attempts if attempt.resume == last)


def seen_by_fence(last: AttemptRecord, uid: str) -> int | None:
    """Return the later attempt of this very job that has refused the last one; None: something else ended it."""
    found = LATER.search(last.reason) if last.exit_code == Exit.IN_USE else None
    return int(found[1]) if found is not None and found[2] == uid else None
