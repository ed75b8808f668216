"""The commands for files of a run: `rljob inspect` and `rljob convert`."""

import sys
import warnings
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from rljob_api.errors import ManifestError
from rljob_api.exits import Exit
from rljob_cli.terminal.options import Output, OutputOption
from rljob_cli.terminal.screen import console, say, say_json

PIPE_WIDTH = 200
"""columns of a table that goes to a file or a pipe"""


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(epilog="Example: rljob inspect runs/job; rljob inspect runs/job/checkpoints/iter_0000010 -o json")(
        inspect
    )
    app.command(epilog="Example: rljob convert runs/job/checkpoints/iter_0000010 models/mine")(convert)


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="Checkpoint, journal, rollouts, or the run directory with all of them; or a Hugging Face checkpoint.",
        ),
    ],
    output: OutputOption = Output.TABLE,
) -> None:
    """Verify checkpoints, journal and rollouts, or a model."""
    from rljob_cli.records import model_view
    from rljob_cli.records.inspect_view import as_json, as_tables
    from rljob_trainer.rundir import inspection

    if model_view.is_model(path):
        _inspect_model(path, output)
    try:
        found = inspection.inspect(path)
    except inspection.NothingFoundError as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_INPUT if path.exists() else Exit.USAGE) from error
    if output is Output.JSON:
        say_json(as_json(found))
    else:
        terminal = sys.stdout.isatty()
        console(PIPE_WIDTH).print(as_tables(found, boxes=terminal))
    raise typer.Exit(Exit.BAD_INPUT if any(facts.problems for facts in found) else Exit.OK)


def _inspect_model(path: Path, output: Output) -> NoReturn:
    from rljob_cli.records import model_view

    try:
        facts = model_view.facts_of(path)
    except ManifestError as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_INPUT) from error
    if output is Output.JSON:
        say_json(model_view.as_json(facts))
    else:
        console(PIPE_WIDTH).print(model_view.as_table(facts))
    raise typer.Exit(Exit.BAD_INPUT if facts.problems else Exit.OK)


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="Checkpoint, run directory (newest checkpoint), or Hugging Face directory."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Directory to create.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Initial model, as in spec.model.checkpoint; default: as recorded by the run.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Convert weights to or from Hugging Face."""
    warnings.simplefilter("ignore")  # Megatron warns about every optional package that is missing
    from rljob_cli.records import convert as converting

    raise typer.Exit(converting.convert(source, target, model))
