"""Which display is chosen, and that a live one leaves the terminal as it should be."""

import os
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from rljob_cli.terminal.display import Lasting, LiveDisplay, display_for, export_svg
from rljob_cli.terminal.lines import LineDisplay
from rljob_cli.terminal.panels import PHASE_COLOURS
from support.cli.synthetic_status import FACTS, NOW, status, view

SHOW_CURSOR = "\x1b[?25h"


def terminal(file: StringIO, width: int = 100) -> Console:
    return Console(file=file, width=width, height=40, force_terminal=True, color_system="truecolor")


@pytest.mark.parametrize("variable", ["NO_COLOR", "CI"])
def test_lines_are_for_ci_and_for_those_who_want_no_colours(variable: str) -> None:
    assert isinstance(display_for(FACTS, terminal(StringIO()), {variable: "1"}).display, LineDisplay)


def test_lines_are_for_pipes() -> None:
    assert isinstance(display_for(FACTS, Console(file=StringIO(), force_terminal=False), {}).display, LineDisplay)


def test_a_terminal_gets_the_live_picture() -> None:
    assert isinstance(display_for(FACTS, terminal(StringIO()), {}).display, LiveDisplay)


def test_lines_go_to_standard_output_as_they_happen(capsys: pytest.CaptureFixture[str]) -> None:
    with display_for(FACTS, Console(file=StringIO(), force_terminal=False), {}) as display:
        display.note("hello")
    assert capsys.readouterr().out.splitlines()[1:] == ["hello"]


def test_the_last_picture_stays_and_the_cursor_is_back() -> None:
    file = StringIO()
    with LiveDisplay(FACTS, terminal(file), lambda: NOW) as display:
        display.update(status())
    assert "18/36" in file.getvalue()
    assert SHOW_CURSOR in file.getvalue()


def test_an_exception_ends_the_picture_and_goes_on() -> None:
    file = StringIO()
    with pytest.raises(RuntimeError, match="lost"), LiveDisplay(FACTS, terminal(file), lambda: NOW) as display:
        display.update(status())
        raise RuntimeError("lost")
    assert file.getvalue().endswith(SHOW_CURSOR)


def test_notes_stand_above_the_picture_and_are_not_markup() -> None:
    file = StringIO()
    with LiveDisplay(FACTS, terminal(file), lambda: NOW) as display:
        display.note("[bold]engine-1[/bold]: restarted")
    assert "[bold]engine-1[/bold]: restarted" in file.getvalue()


def test_a_terminal_that_becomes_narrower_is_drawn_anew() -> None:
    file = StringIO()
    console = terminal(file)
    with LiveDisplay(FACTS, console, lambda: NOW) as display:
        display.update(status())
        console.width = 60
    assert "\x1b[2J\x1b[H" in file.getvalue()


@pytest.mark.parametrize("width", [60, 100])
def test_the_picture_can_be_exported_as_svg(tmp_path: Path, width: int) -> None:
    export_svg(view(status()), tmp_path / "display.svg", width)
    assert ElementTree.parse(tmp_path / "display.svg").getroot().tag.endswith("svg")
    written = (tmp_path / "display.svg").read_text()
    assert "chain_sum" in written
    assert f"fill: {PHASE_COLOURS['rollout']}" in written, "in colours"
    assert ">rljob&#160;run</text>" in written, "its title"


def test_a_live_display_exports_what_it_shows(tmp_path: Path) -> None:
    display = LiveDisplay(FACTS, terminal(StringIO()), lambda: NOW)
    display.update(status())
    display.export_svg(tmp_path / "display.svg")
    assert "18/36" in (tmp_path / "display.svg").read_text()


class Vanishing:
    """A display whose terminal has been closed."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        raise BrokenPipeError

    def update(self, status):
        raise OSError(5, "Input/output error")

    def note(self, text):
        raise BrokenPipeError


def test_a_run_goes_on_when_its_terminal_is_gone(monkeypatch) -> None:
    with Path(os.devnull).open("w") as output:
        monkeypatch.setattr("sys.stdout", output)
        with Lasting(Vanishing()) as display:
            display.update(status())
            display.note("still there")
