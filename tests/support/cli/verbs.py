"""All verbs of the command line."""

from collections.abc import Iterator
from typing import Any

import typer.main

from rljob_cli.main import app


def commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the verbs with their commands; one such as `reward test` has two words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


VERBS = dict(commands(typer.main.get_command(app)))
