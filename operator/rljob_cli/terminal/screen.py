"""All that the verbs print: tables and charts go to a terminal with colours, and as plain text everywhere else.

Text of others cannot steer the terminal: nothing else of this package writes to it. rich honours NO_COLOR.
"""

import codecs
import io
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rljob_api.foreign_text import printable

PLAIN_WIDTH: Final = 100_000
"""columns where there is no terminal: nothing is wrapped there"""
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_LINE_ENDS = re.compile(r"\r\n?")
"""also of bars of progress, which begin their line again"""


def is_terminal() -> bool:
    """Return whether what is shown may move and have colours."""
    console = Printable()
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
        Printable().print(what)
        return
    page = io.StringIO()
    Printable(file=page, width=PLAIN_WIDTH, force_terminal=False, no_color=True).print(what)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines()))
    sys.stdout.flush()


class Printable(Console):
    """A console for text of others: it follows no markup in it, and shows control characters as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            is_ours = segment.control or segment.text == "\n"
            yield segment if is_ours else Segment(printable(segment.text), segment.style)


def console(pipe_width: int | None = None) -> Printable:
    """Return the standard output, with this width where it is not a terminal [columns]."""
    return Printable(width=None if sys.stdout.isatty() else pipe_width)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Write text, with control characters as escapes."""
    typer.echo(printable(text), err=err, nl=nl)


def say_json(text: str) -> None:
    """Write JSON, with control characters as JSON escapes them."""
    typer.echo(text if text.isprintable() else "".join(map(_in_json, text)))


def _in_json(char: str) -> str:
    return char if char == "\n" or printable(char) == char else json.dumps(char)[1:-1]


def write_log(chunks: Iterable[bytes]) -> None:
    """Write a log as it comes: as it is to a file or a pipe, without colours and with escapes to a terminal."""
    if not sys.stdout.isatty():
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
        return
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for chunk in chunks:
        text = _LINE_ENDS.sub("\n", _COLOURS.sub("", decoder.decode(chunk)))
        sys.stdout.write(printable(text))
        sys.stdout.flush()


@contextmanager
def printable_errors() -> Iterator[None]:
    """Escape control characters in what typer says about a command line."""
    try:
        yield
    except typer.TyperException as error:
        error.__dict__.update({name: printable(text) for name, text in vars(error).items() if isinstance(text, str)})
        raise


def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write an error that nothing expected, as Python does, with control characters as escapes."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))
