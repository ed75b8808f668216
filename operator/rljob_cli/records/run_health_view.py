"""Reads a run directory for `rljob why`, and shows the answer."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from rljob_api.exits import Exit
from rljob_cli.records.run_health import Number, RunHealth, run_health
from rljob_cli.run.rundir import in_use
from rljob_cli.terminal.prose import say_prose
from rljob_cli.terminal.screen import say, say_json
from rljob_trainer.reporting.events import EventsError
from rljob_trainer.reporting.reading.history import History, NotARunError, read_history


def show_run(directory: Path, as_json: bool) -> None:
    """Print the health of a run."""
    try:
        history = read_history(directory)
    except (NotARunError, EventsError, OSError) as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_INPUT) from error
    found = run_health(history, in_use(directory))
    if as_json:
        say_json(as_value(history, found))
    else:
        say_prose(as_text(history, found))


def as_text(history: History, found: RunHealth) -> str:
    evidence = (f"  {each}" for each in found.evidence)
    return "\n".join([f"{history.run.job}: {found.sentence}", *table(found.numbers), *evidence])


def table(numbers: Sequence[Number]) -> list[str]:
    """Return the lines of a table of what is now beside what is usual; none without numbers."""
    width = max((len(each.name) for each in numbers), default=0)
    head = [f"  {'':{width}}  {'now':>9}  {'usual':>9}"] if numbers else []
    return [*head, *(line(each, width) for each in numbers)]


def line(number: Number, width: int) -> str:
    return f"  {number.name:{width}}  {shown(number.now, number.unit):>9}  {shown(number.before, number.unit):>9}"


def shown(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:.3g}{' ' + unit if unit else ''}"


def as_value(history: History, found: RunHealth) -> str:
    return json.dumps({"job": history.run.job, "step": history.step, **asdict(found)}, indent=2, ensure_ascii=False)
