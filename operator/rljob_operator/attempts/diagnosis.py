"""Which known failure ended an attempt, from what the operator can see of it. Pure.

The driver reads its own logs before it ends, and logs what it recognises. If it was killed, there are still the end of
its output, which Ray keeps, and what Kubernetes says of the pods. Reading these takes seconds: `diagnoses.py` has it
done in another process.
"""

from rljob_api.exits import Exit
from rljob_api.known_failure import KnownFailure
from rljob_operator.attempts.attempt_view import AttemptView
from rljob_operator.world.history import AttemptRecord, Evidence

IN_ORDER = (Exit.OK, Exit.PREEMPTED)
"""ends that need no explanation"""
NO_NEWS = "Job entrypoint command failed"
"""what Ray says of every driver that fails"""


MOST_TEXT = 16_000
"""of what is said of the pods: each container may end with another 4,096 bytes [characters]"""


def evidence_of(ended: AttemptRecord, attempt: AttemptView) -> Evidence | None:
    """Return what has to be read; None: the attempt ended in order."""
    if ended.exit_code in IN_ORDER:
        return None
    output = attempt.driver.message if attempt.driver else ""
    said = [line for line in (*output.splitlines(), ended.reason) if not line.startswith(NO_NEWS)]
    return Evidence("\n".join(said), "\n".join(_of_pods(attempt))[-MOST_TEXT:])


def failure_in(evidence: Evidence) -> KnownFailure | None:
    """Return the failure that the driver has logged, or that the evidence shows; None: none is recognised.

    Takes up to some seconds, of which the first call spends one on importing the doctor.
    """
    from rljob_doctor.known import known_failure, logged
    from rljob_doctor.scan import scan

    if found := logged(evidence.driver):
        return found
    seen = {"driver": evidence.driver, "pods": evidence.pods}
    return known_failure([scan(name, text.encode(errors="replace")) for name, text in seen.items()])


def _of_pods(attempt: AttemptView) -> list[str]:
    lines = [line for pod in attempt.pods for line in pod.trouble]
    lines += [
        f"Warning {event.reason} pod/{name} {event.note}"
        for name, events in attempt.pod_events.items()
        for event in events
    ]
    return lines
