"""Where tables go: without colours and without spaces at the ends of lines to pipes, and in place on a terminal."""

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from rljob_cli.cluster import watching
from rljob_cli.jobs.job_table import plain_table
from rljob_cli.terminal import screen


@pytest.mark.parametrize(
    ("terminal", "environ", "coloured"),
    [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (True, {"NO_COLOR": ""}, False), (False, {}, False)],
)
def test_colours_are_for_terminals_that_want_them(monkeypatch, terminal, environ, coloured):
    monkeypatch.setattr(screen, "is_terminal", lambda: terminal)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    assert screen.has_colours() is coloured


def test_a_pipe_gets_lines_without_spaces_at_their_ends(capsys: pytest.CaptureFixture[str]):
    screen.show(Text("one  \n two", style="bold red"))
    assert capsys.readouterr().out == "one\n two\n"


@pytest.mark.parametrize("whole_screen", [True, False])
def test_a_picture_that_is_higher_than_the_terminal_is_cut_at_its_end_while_it_moves(whole_screen: bool):
    shown, moving = StringIO(), []

    def pictures() -> Iterator[tuple[Text, str]]:
        yield Text("\n".join(f"line {number}" for number in range(9))), ""
        moving.append(shown.getvalue())

    watching.live(Console(file=shown, width=20, height=4, force_terminal=True), pictures(), whole_screen)

    assert "line 3" in moving[0] and "line 4" not in moving[0] and "..." not in moving[0]


def test_trouble_stands_below_the_picture():
    shown = StringIO()
    console = Console(file=shown, width=40, height=9, force_terminal=True, color_system=None)
    watching.live(console, [(Text("a picture"), "the cluster is away")], whole_screen=True)

    assert shown.getvalue().index("a picture") < shown.getvalue().index("the cluster is away")


def test_columns_of_names_stay_on_one_line_where_there_is_no_room():
    table = plain_table(("PHASE", "NAME"), ())
    table.add_row("a phase of words", "a-name-that-is-much-longer-than-the-room-for-it")
    shown = StringIO()
    Console(file=shown, width=30).print(table)

    first = shown.getvalue().splitlines()[1]
    assert first.startswith("a phase of words  ") and len(first) <= 30
