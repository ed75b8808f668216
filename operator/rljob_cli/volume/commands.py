"""The commands for run directories of a volume: `rljob runs` and `rljob runs prune`."""

import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rljob_api.exits import Exit
from rljob_cli.terminal.options import Output, OutputOption
from rljob_cli.terminal.screen import say, say_json, show
from rljob_cli.volume.bounds import DEPTH, ENTRIES, SECONDS

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
PERIOD = re.compile(r"(\d{1,9})([smhdw])")


class Runs(TyperGroup):
    """The verbs; without one, `list`: `rljob runs DIRECTORY`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_list = bool(args) and args[0] not in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if is_list else args)


Directory = Annotated[
    Path,
    typer.Argument(
        exists=True, file_okay=False, resolve_path=True, help="Directory of a volume: runs, /rljob, /rljob/ml."
    ),
]
Depth = Annotated[int, typer.Option(min=0, max=32, help="Levels below the directory.")]
Entries = Annotated[int, typer.Option(min=1, help="Most files and directories to look at.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Longest time to look.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    runs = typer.Typer(
        cls=Runs,
        help="List run directories of a volume, and delete old ones.",
        epilog="Example: rljob runs /rljob; rljob runs prune /rljob --older-than 30d",
        no_args_is_help=True,
        rich_markup_mode=None,
        subcommand_metavar="[list|prune] DIRECTORY [ARGS]...",
    )
    runs.command("list", epilog="Example: rljob runs runs; rljob runs list /rljob/ml -o json")(list_)
    runs.command("prune", epilog="Example: rljob runs prune /rljob/ml --older-than 30d --keep-last-checkpoint")(prune)
    app.add_typer(runs, name="runs")


def list_(
    directory: Directory,
    output: OutputOption = Output.TABLE,
    json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    depth: Depth = DEPTH,
    entries: Entries = ENTRIES,
    seconds: Seconds = SECONDS,
) -> None:
    """List run directories by size, with progress, owner and use."""
    from rljob_cli.volume import listing, view
    from rljob_cli.volume.extent import Budget

    now = time.time()
    found = listing.listing(directory, depth, Budget(entries, seconds), now)
    if json or output is Output.JSON:
        say_json(view.as_json(found, now))
    else:
        show(view.as_table(found, now))


def period(text: str) -> int:
    """Return a time such as `30d` in seconds."""
    read = PERIOD.fullmatch(text)
    if read is None:
        raise typer.BadParameter(f"{text!r} is not a number with a unit of s, m, h, d, w: 30d")
    return int(read[1]) * UNITS_S[read[2]]


def prune(
    directory: Directory,
    older_than: Annotated[
        int, typer.Option(parser=period, metavar="TIME", help="Time since the last change in the run: 12h, 30d, 8w.")
    ],
    keep_last_checkpoint: Annotated[
        bool, typer.Option("--keep-last-checkpoint", help="Keep what a run needs to resume, its records and logs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without a question.")] = False,
    output: OutputOption = Output.TABLE,
    depth: Depth = DEPTH,
    entries: Entries = ENTRIES,
    seconds: Seconds = SECONDS,
) -> None:
    """Show which old runs would be deleted; delete them with --yes."""
    from rljob_cli.volume import listing, pruning, view
    from rljob_cli.volume.extent import Budget

    now, budget = time.time(), partial(Budget, entries, seconds)
    found = listing.listing(directory, depth, budget(), now)
    plan = pruning.pruning(found, pruning.Rule(older_than, keep_last_checkpoint), budget, now)
    if output is Output.TABLE:
        show(view.plan_as_table(plan, now))
    deleted: list[Path] = []
    failures: list[str] = []
    if plan.doomed or found.leftovers:
        if yes or (output is Output.TABLE and _agreed()):
            deleted, failures = pruning.carry_out(plan, budget, time.time)
        elif output is Output.TABLE:
            say("nothing was deleted; --yes deletes it")
    if output is Output.JSON:
        say_json(view.plan_as_json(plan, deleted, failures))
    for failure in failures:
        say(failure, err=True)
    if deleted and output is Output.TABLE:
        say(f"deleted: {len(deleted)} of {len(plan.doomed) + len(found.leftovers)}")
    raise typer.Exit(Exit.FAILED if failures else Exit.OK)


def _agreed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Delete it?")
