"""Looks at a cluster again and again; one that is away for a while is waited for."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from rljob_api.exits import Exit
from rljob_cli.cluster.cluster import ClusterError
from rljob_cli.jobs.job_table import fraction
from rljob_cli.jobs.jobs import Job
from rljob_cli.terminal.formats import seconds

INTERVAL_S: Final = 2.0
SHARE: Final = 5
"""length of the pause after a slow request, in durations of the request: thousands of jobs are megabytes"""

View = TypeVar("View")


def looks(
    look: Callable[[], View],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[View, str]]:
    """Yield what is seen, about every INTERVAL_S, with "" or why it is the old.

    Raises ClusterError when nothing could be seen the first time, and for what waiting does not cure.
    """
    began = clock()
    seen, trouble = look(), ""
    while True:
        pause_s = max(INTERVAL_S, SHARE * (clock() - began))
        yield seen, trouble
        sleep(pause_s)
        began = clock()
        try:
            seen, trouble = look(), ""
        except ClusterError as error:
            if error.exit is not Exit.UNREACHABLE:
                raise
            trouble = str(error)


def live(console: Console, pictures: Iterable[tuple[RenderableType, str]], whole_screen: bool) -> None:
    """Show one picture after the other in the same place, with its trouble below, until there is none left."""
    with Live(console=console, auto_refresh=False, screen=whole_screen, vertical_overflow="crop") as display:
        for picture, trouble in pictures:
            shown = Group(picture, Text(f"\n{trouble}", style="yellow")) if trouble else picture
            display.update(shown, refresh=True)


def changed(before: Iterable[Job], now: Iterable[Job]) -> Iterator[Job]:
    """Yield the jobs that are new, or whose `line` differs in more than times."""
    known = {job.key: _facts(job) for job in before}
    return (job for job in now if known.get(job.key) != _facts(job))


def line(job: Job) -> str:
    """Return, for example, `ml/sums  Training  step 12/38  reward 0.31  held-out 0.42  engines 2/2  eta 2m40s: …`."""
    progress = job.status.progress
    eta = progress.eta_seconds if progress and not job.has_ended else None
    parts = [
        job.key,
        "Deleting" if job.is_deleting else str(job.status.phase or "Unseen"),
        f"step {job.step}/{job.steps}",
    ]
    if progress and progress.reward is not None:
        parts.append(f"reward {fraction(progress.reward)}")
    if progress and progress.perplexity is not None:
        parts.append(f"perplexity {progress.perplexity:.3g}")
    if progress and progress.held_out_perplexity is not None:
        parts.append(f"held-out {progress.held_out_perplexity:.3g}")
    if progress and progress.accuracy is not None:
        parts.append(f"held-out {fraction(progress.accuracy)}")
    if not job.has_ended:
        parts.append(f"engines {job.engines_ready}/{job.engines_wanted}")
    if eta is not None:
        parts.append(f"eta {seconds(eta)}")
    return f"{'  '.join(parts)}: {job.explanation}"


def _facts(job: Job) -> object:
    engines = job.engines_ready, job.engines_wanted
    return job.uid, job.status.phase, job.step, engines, job.is_deleting, job.explanation
