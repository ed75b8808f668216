"""Options and arguments that verbs of several kinds have."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

STDIN = Path("-")


class Output(StrEnum):
    """How a verb shows its result."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]


def readable(path: Path) -> Path:
    """Refuse what cannot be read; `-` is stdin, and a pipe, as in `<(helm template)`, is a file, too."""
    if path != STDIN and not path.exists():
        raise typer.BadParameter(f"file '{path}' does not exist.")
    if path.is_dir():
        raise typer.BadParameter(f"'{path}' is a directory; a file is expected.")
    return path


def all_readable(paths: list[Path]) -> list[Path]:
    """Refuse files that cannot be read. (typer 0.29 forgets `-` for `allow_dash`.)"""
    return [readable(path) for path in paths]
