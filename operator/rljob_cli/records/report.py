"""`rljob report RUN_DIR`: the HTML report of a run, and the same in a few lines here."""

import webbrowser
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rljob_api.exits import Exit
from rljob_cli.records.report_view import as_json, as_table
from rljob_cli.terminal.screen import console, say, say_json
from rljob_trainer.reporting.events import EventsError
from rljob_trainer.reporting.reading.history import NotARunError, read_history
from rljob_trainer.reporting.reading.html import write_report
from rljob_trainer.reporting.reading.step_windows import MOST


class Output(StrEnum):
    """How the summary is shown."""

    TABLE = "table"
    JSON = "json"


def report(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of the run: runs/NAME.")],
    output: Annotated[Output, typer.Option("--output", "-o", help="A table for people, or JSON.")] = Output.TABLE,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Write report.html for a run, also for one that has not finished; print what came out."""
    try:
        path = write_report(run_directory)
        history = read_history(run_directory, MOST)
    except (NotARunError, EventsError, OSError) as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_INPUT) from error
    if output is Output.JSON:
        say_json(as_json(history, path))
    else:
        console().print(as_table(history, path))
    if open_browser:
        webbrowser.open(path.resolve().as_uri())
