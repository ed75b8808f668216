"""What `rljob run` shows during a run: a live picture on a terminal, plain lines everywhere else.

The supervisor calls `update` with every status of the driver and `note` with what it did itself.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.control import Control
from rich.live import Live

from rljob_api.control import Status
from rljob_api.foreign_text import printable
from rljob_cli.terminal.lines import LineDisplay
from rljob_cli.terminal.panels import RunFacts, View, picture
from rljob_cli.terminal.screen import Printable

log = logging.getLogger(__name__)

REFRESHES_PER_SECOND = 4


class Display(Protocol):
    """Shows a run while the context is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, status: Status) -> None:
        """Show where the run is."""

    def note(self, text: str) -> None:
        """Show a line that stays."""


def display_for(facts: RunFacts, console: Console, environment: Mapping[str, str] = os.environ) -> "Lasting":
    """Return the display that fits: lines off a terminal, in CI, and where colours are not wanted."""
    if console.is_terminal and not console.is_dumb_terminal and not {"NO_COLOR", "CI"} & environment.keys():
        return Lasting(LiveDisplay(facts, console))
    return Lasting(LineDisplay(facts, _write_line))


class LiveDisplay:
    """A picture that is drawn again four times a second, and stays as it was last when the context ends."""

    def __init__(self, facts: RunFacts, console: Console, now: Callable[[], float] = time.time) -> None:
        self._console = console
        self._now = now
        began = now()
        # Replaced as a whole: the thread that draws sees the old value or the new one.
        self._view = View(facts, None, began, began, began)
        self._width = console.width
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, status: Status) -> None:
        """Draw this from now on."""
        old = self._view.status
        finished = old is None or status.progress.step != old.progress.step
        self._view = replace(self._view, status=status, step_seen=self._now() if finished else self._view.step_seen)

    def note(self, text: str) -> None:
        """Print a line above the picture."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def export_svg(self, path: Path, width: int = 100) -> None:
        """Write the picture as it is now, for documentation."""
        export_svg(replace(self._view, now=self._now()), path, width)

    def _render(self) -> RenderableType:
        if self._console.width < self._width:
            # The terminal has wrapped the lines of the old picture, so rich cannot find its beginning any more.
            self._console.control(Control.clear(), Control.home())
        self._width = self._console.width
        return picture(replace(self._view, now=self._now()), self._width, self._console.options.ascii_only)


class Lasting:
    """A display that may vanish: when its terminal is closed, or the pipe, the run continues without it."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self._gone = False

    def __enter__(self) -> Self:
        self._try(self.display.__enter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._try(self.display.__exit__, kind, error, trace)

    def update(self, status: Status) -> None:
        """Show where the run is."""
        self._try(self.display.update, status)

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._try(self.display.note, text)

    def _try(self, show: Callable[..., object], *arguments: object) -> None:
        if self._gone:
            return
        try:
            show(*arguments)
        except OSError as error:
            self._gone = True
            log.warning("action=go_on_without_display reason=%s", error)
            # Python would fail once more when it flushes what is left at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def export_svg(view: View, path: Path, width: int = 100) -> None:
    """Write what the display would show as an SVG file."""
    with Path(os.devnull).open("w") as nowhere:
        console = Printable(file=nowhere, record=True, width=width, force_terminal=True, color_system="truecolor")
        console.print(picture(view, width))
        console.save_svg(str(path), title="rljob run")


def _write_line(line: str) -> None:
    # Flushed: a pipe or a CI log should show a step when it is finished.
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()
