"""Who holds GPUs, who waits for them, and what each namespace has used, from the jobs' status alone. Pure."""

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_api.status import ConditionType
from rljob_cli.jobs.job_table import NOTHING, phase_text, plain_table, shown_name
from rljob_cli.jobs.jobs import Job
from rljob_cli.terminal.formats import age, seconds

WAITING = ("POS", "JOB", "GPUS", "WAITS", "FOR")
HOLDING = ("JOB", "PHASE", "GPUS", "HELD", "ENDS IN")
SPACES = ("NAMESPACE", "HELD", "WANTED", "GPU-HOURS")
LEFT = frozenset({"JOB", "PHASE", "FOR", "NAMESPACE"})


def as_tables(jobs: Sequence[Job], now: datetime, namespaces: bool) -> RenderableType:
    """Return the jobs that wait, in their order; those that hold GPUs, first those that end first; the namespaces."""
    waiting = sorted((job for job in jobs if waits(job)), key=lambda job: (_position(job), job.key))
    holding = sorted((job for job in jobs if holds(job)), key=lambda job: (_ends_in_s(job), job.key))
    parts: list[RenderableType] = [_sums(waiting, holding)]
    if waiting:
        parts += ["", _waiting(waiting, now, namespaces)]
    if holding:
        parts += ["", _holding(holding, now, namespaces)]
    if jobs:
        parts += ["", _spaces(jobs, now)]
    return Group(*parts)


def holds(job: Job) -> bool:
    """Return whether a job holds what its pods need."""
    return job.status.is_true(ConditionType.QUOTA_RESERVED)


def waits(job: Job) -> bool:
    """Return whether the queue holds a job back."""
    return job.status.queue is not None and not holds(job) and not job.has_ended


def gpu_hours(job: Job, now: datetime) -> float:
    """Return the GPU-hours of all attempts that the status still has."""
    ends = [(attempt.start_after, attempt.ended or now) for attempt in job.status.attempts]
    return sum(max(0.0, (end - begin).total_seconds()) for begin, end in ends) * (job.status.gpus or 0) / 3600


def _sums(waiting: Sequence[Job], holding: Sequence[Job]) -> Text:
    held, wanted = (sum(job.status.gpus or 0 for job in jobs) for jobs in (holding, waiting))
    return Text(f"{_jobs(holding)} hold {held} GPUs; {_jobs(waiting)} wait for {wanted}")


def _jobs(jobs: Sequence[Job]) -> str:
    return f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"


def _waiting(jobs: Sequence[Job], now: datetime, namespaces: bool) -> Table:
    table = plain_table(WAITING, set(WAITING) - LEFT)
    for job in jobs:
        queue, condition = job.status.queue, job.condition(ConditionType.QUOTA_RESERVED)
        since = queue.since if queue is not None else None
        position = queue.position if queue is not None else None
        message = condition.message.removeprefix(f"position {position} in the queue: ") if condition else ""
        table.add_row(
            Text(NOTHING if position is None else str(position)),
            Text(shown_name(job, namespaces), style="bold"),
            Text(str(job.status.gpus or 0)),
            Text(NOTHING if since is None else age((now - since).total_seconds())),
            Text(message, style="dim"),
        )
    return table


def _holding(jobs: Sequence[Job], now: datetime, namespaces: bool) -> Table:
    table = plain_table(HOLDING, set(HOLDING) - LEFT)
    for job in jobs:
        queue, progress = job.status.queue, job.status.progress
        eta = progress.eta_seconds if progress else None
        table.add_row(
            Text(shown_name(job, namespaces), style="bold"),
            phase_text(job),
            Text(str(job.status.gpus or 0)),
            Text(NOTHING if queue is None else age((now - queue.since).total_seconds())),
            Text(NOTHING if eta is None else seconds(eta)),
        )
    return table


def _spaces(jobs: Sequence[Job], now: datetime) -> Table:
    table = plain_table(SPACES, set(SPACES) - LEFT)
    for space in sorted({job.namespace for job in jobs}):
        mine = [job for job in jobs if job.namespace == space]
        table.add_row(
            Text(space),
            Text(str(sum(job.status.gpus or 0 for job in mine if holds(job)))),
            Text(str(sum(job.status.gpus or 0 for job in mine if waits(job)))),
            Text(f"{sum(gpu_hours(job, now) for job in mine):.1f}"),
        )
    return table


def _position(job: Job) -> float:
    found = job.status.queue.position if job.status.queue is not None else None
    return float("inf") if found is None else found


def _ends_in_s(job: Job) -> float:
    eta = job.status.progress.eta_seconds if job.status.progress else None
    return float("inf") if eta is None else eta
