"""Keeps faults away from jobs that are not meant. Pure."""

from collections.abc import Mapping

from rljob_api.status import Phase
from rljob_cli.jobs.jobs import Job

LABEL, ALLOWED = "rljob.dev/chaos", "allowed"
"""of a namespace whose jobs may be hit without --yes"""


def refusal(namespace: str, labels: Mapping[str, str] | None, has_agreed: bool) -> str | None:
    """Return why faults are refused; None: they are allowed. `labels`: of the namespace; None: they may not be read."""
    if has_agreed or (labels or {}).get(LABEL) == ALLOWED:
        return None
    unknown = " (its labels may not be read)" if labels is None else ""
    return (
        f"namespace {namespace} is not marked for faults{unknown}, and nothing was done: they would cost the job steps "
        f"and GPU time. On a staging cluster: kubectl label namespace {namespace} {LABEL}={ALLOWED}, or give --yes"
    )


def unfit(job: Job) -> str | None:
    """Return why a job cannot be hit; None: it can."""
    if job.is_deleting:
        return f"{job.key} is being deleted"
    if job.has_ended or job.status.phase in (Phase.INVALID, Phase.SUSPENDED, Phase.SUSPENDING):
        return f"{job.key} is {job.status.phase}; faults need a job that trains"
    return None
