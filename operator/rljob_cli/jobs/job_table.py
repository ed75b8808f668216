"""RLJobs as a table, a job a row. Pure: `now` is given."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from rljob_api.status import Phase
from rljob_cli.jobs.jobs import Job
from rljob_cli.terminal.formats import age, seconds

NOTHING = "–"
PHASE_STYLES = {
    Phase.INVALID: "bold red",
    Phase.QUEUED: "yellow",
    Phase.PROVISIONING: "cyan",
    Phase.STARTING: "cyan",
    Phase.TRAINING: "green",
    Phase.RECOVERING: "yellow",
    Phase.SUSPENDING: "dim",
    Phase.SUSPENDED: "dim",
    Phase.SUCCEEDED: "bold green",
    Phase.FAILED: "bold red",
}
COLUMNS = ("NAME", "PHASE", "STEP", "REWARD", "HELD-OUT", "ENGINES", "GPUS", "AGE", "ETA")
NUMBERS = frozenset({"REWARD", "HELD-OUT", "GPUS", "AGE", "ETA"})
"""written at the right of their columns"""
FREE = frozenset({"NAME", "JOB", "LAST ERROR"})
"""columns that give way on a narrow terminal"""


def as_table(jobs: Iterable[Job], now: datetime, namespaces: bool) -> Table:
    """Return the jobs by namespace and name; `namespaces`: with a column for theirs."""
    table = plain_table((*(("NAMESPACE",) if namespaces else ()), *COLUMNS), NUMBERS)
    for job in jobs:
        table.add_row(*([Text(job.namespace)] if namespaces else []), *row(job, now))
    return table


def plain_table(titles: Sequence[str], numbers: Iterable[str] = ()) -> Table:
    """Return a table without lines, as kubectl's."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    right = set(numbers)
    for title in titles:
        table.add_column(
            title, justify="right" if title in right else "left", no_wrap=title not in FREE, overflow="fold"
        )
    return table


def shown_name(job: Job, namespaces: bool) -> str:
    """Return a job's name, with its namespace where jobs of several are shown."""
    return job.key if namespaces else job.name


def row(job: Job, now: datetime) -> tuple[Text, ...]:
    """Return the cells of COLUMNS."""
    progress, phase = job.status.progress, job.status.phase
    eta = progress.eta_seconds if progress and not job.has_ended else None
    healthy = job.engines_ready >= job.engines_wanted or job.has_ended
    return (
        Text(job.name, style="bold"),
        phase_text(job),
        Text(f"{job.step}/{job.steps}"),
        Text(fraction(progress.reward if progress else None)),
        Text(fraction(progress.accuracy if progress else None)),
        Text(f"{job.engines_ready}/{job.engines_wanted}", style="" if healthy or phase is None else "yellow"),
        Text(NOTHING if job.status.gpus is None else str(job.status.gpus)),
        Text(age((now - job.created).total_seconds())),
        Text(NOTHING if eta is None else seconds(eta)),
    )


def phase_text(job: Job) -> Text:
    """Return the job's phase in its colour."""
    phase = job.status.phase
    if job.is_deleting:
        return Text("Deleting", style="dim")
    return Text("Unseen", style="yellow") if phase is None else Text(phase, style=PHASE_STYLES[phase])


def fraction(value: float | None) -> str:
    """Return a reward or an accuracy in two digits."""
    return NOTHING if value is None else f"{value:.2f}"
