"""The commands that come from other systems and go back: `rljob import` and `rljob export slime`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rljob_api.errors import ManifestError
from rljob_api.exits import Exit
from rljob_cli.terminal.options import readable
from rljob_cli.terminal.screen import say


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("import", epilog="Example: rljob import run-qwen3-4B.sh --set BASE_DIR=/data > job.yaml")(import_)
    back = typer.Typer(help="Write a manifest for another system.", no_args_is_help=True, rich_markup_mode=None)
    back.callback()(_no_options)  # a group with one command would be that command
    back.command("slime", epilog="Example: rljob export slime job.yaml > run.sh")(export_slime)
    app.add_typer(back, name="export")


def _no_options() -> None:
    pass


def import_(
    script: Annotated[
        Path,
        typer.Argument(callback=readable, metavar="SCRIPT", help="Launch script or configuration; - reads stdin."),
    ],
    assigned: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value of a variable of the script; repeatable.", show_default=False
        ),
    ] = None,
) -> None:
    """Turn a script of slime, Miles, verl or NeMo-RL into a manifest."""
    from rljob_cli.manifest import scripts

    read = scripts.imported(script, variables(assigned or ()))
    say(read.summary, err=True)
    if read.manifest:
        say(read.manifest, nl=False)
    raise typer.Exit(read.exit_code)


def export_slime(
    manifest: Annotated[
        Path, typer.Argument(callback=readable, metavar="MANIFEST", help="YAML file of the RLJob; - reads stdin.")
    ],
) -> None:
    """Write a manifest as flags of slime."""
    from rljob_cli.manifest import scripts

    try:
        say(scripts.exported(manifest), nl=False)
    except ManifestError as error:
        say(str(error), err=True)
        raise typer.Exit(Exit.BAD_MANIFEST) from error


def variables(assigned: tuple[str, ...] | list[str]) -> Mapping[str, str]:
    """Return the variables of `--set`. Raises typer.BadParameter."""
    for text in assigned:
        if not text.partition("=")[0].isidentifier() or "=" not in text:
            raise typer.BadParameter(f"--set {text}: write NAME=VALUE.")
    return {name: value for name, _, value in (text.partition("=") for text in assigned)}
