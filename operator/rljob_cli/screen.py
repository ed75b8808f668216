"""Where tables and charts go: to a terminal with colours, as plain text everywhere else. rich honours NO_COLOR."""

import io
import os
import shutil
import sys
from typing import Final

from rich.console import Console, RenderableType

PLAIN_WIDTH: Final = 100_000
"""columns where there is no terminal: nothing is wrapped there"""


def is_terminal() -> bool:
    """Return whether what is shown may move and have colours."""
    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


def has_colours() -> bool:
    """Return whether colours are shown."""
    return is_terminal() and "NO_COLOR" not in os.environ


def ascii_only() -> bool:
    """Return whether there is nothing but ASCII."""
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def size() -> tuple[int, int]:
    """Return columns and lines of a picture."""
    columns, lines = shutil.get_terminal_size((80, 24))
    return (columns, lines) if is_terminal() else (80, 24)


def show(what: RenderableType) -> None:
    """Write it to the standard output."""
    if is_terminal():
        Console().print(what)
        return
    page = io.StringIO()
    Console(file=page, width=PLAIN_WIDTH, force_terminal=False, no_color=True).print(what)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines()))
    sys.stdout.flush()
