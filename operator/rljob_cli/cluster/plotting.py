"""`rljob plot`: from a job's status or a run's directory to a picture."""

from collections.abc import Sequence
from pathlib import Path

import typer

from rljob_api.exits import Exit
from rljob_cli.cluster.options import Format
from rljob_cli.jobs.job_json import as_json
from rljob_cli.jobs.jobs import Job, nearest
from rljob_cli.records.plot_view import Curve, Metric, as_charts, as_svg, as_value
from rljob_cli.terminal import screen
from rljob_cli.terminal.screen import say, say_json
from rljob_trainer.reporting.curve import stepwise
from rljob_trainer.reporting.events import FILE_NAME, EventsError
from rljob_trainer.reporting.reading.history import NotARunError, read_history


def metrics(names: Sequence[str]) -> tuple[Metric, ...]:
    """Return the metrics of these names. Raises typer.BadParameter for a name that is none."""
    for name in names:
        if name not in list(Metric):
            known = ", ".join(Metric)
            close = nearest(name, Metric) or Metric.REWARD
            raise typer.BadParameter(f'"{name}" is not a metric ({known}); nearest: {close}')
    return tuple(Metric(name) for name in names)


def is_directory(name: str) -> bool:
    """Return whether the directory of a run on this machine is meant, not a job: no name of a job has a slash."""
    return "/" in name or (Path(name) / FILE_NAME).is_file()


def local_curve(directory: Path) -> Curve:
    """Return the curve of a run on this machine, with all its steps; ends the process when it cannot be read."""
    try:
        history = read_history(directory)
    except (NotARunError, EventsError, OSError) as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_INPUT) from error
    state = f"step {history.step}/{history.run.steps}, {history.outcome or 'not finished'}"
    return Curve(history.run.job, state, stepwise(history.steps, (*history.evaluations, *history.perplexities)))


def job_curve(job: Job) -> Curve:
    """Return the curve that stands in a job's status."""
    return Curve(job.key, f"step {job.step}/{job.steps}, {job.status.phase or 'Unseen'}", job.status.curve)


def show(curve: Curve, wanted: Sequence[Metric], output: Format) -> None:
    """Write the curve to the standard output; without metrics: all but speed, if there is any."""
    chosen = wanted or curve.measured()
    if output is Format.JSON:
        say_json(as_json(as_value(curve)))
    elif output is Format.SVG:
        say(as_svg(curve, (chosen or (Metric.REWARD,))[0]))
    else:
        columns, lines = screen.size()
        screen.show(as_charts(curve, chosen, columns, lines - 2, screen.ascii_only()))
