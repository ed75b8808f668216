"""Answers on a terminal: no word is broken, nothing is lost, and a pipe gets them as they are."""

import re

from hypothesis import given
from hypothesis import strategies as st

from rljob_cli.terminal.prose import say_prose, wrapped
from support.cli.command import on_terminal, rljob

WORDS = st.lists(st.text("abc.:;`()<>-", min_size=1, max_size=30), min_size=1, max_size=40)


@given(WORDS, st.sampled_from(["", "  do:   ", "   seen:  ", "job.yaml: spec.a: "]))
def test_wrapping_keeps_every_word_and_no_line_is_too_long(words: list[str], label: str) -> None:
    text = label + " ".join(words)
    lines = wrapped(text, 80).plain.split("\n")
    assert " ".join(lines).split() == text.split()
    assert max(map(len, lines)) <= 80


def test_a_long_path_stays_whole() -> None:
    path = f"/{'long/' * 30}file.yaml:"
    assert f"{path} is missing" in " ".join(wrapped(f"{path} is missing", 80).plain.split())


def test_a_pipe_gets_the_text_as_it_is(capsys) -> None:
    say_prose(text := "job.yaml: spec.a: " + "word " * 40)
    assert capsys.readouterr().out == f"{text}\n"


def test_a_terminal_of_80_columns_breaks_no_word() -> None:
    plain = rljob("explain", "137").out
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("explain", "137").out.replace("\r\n", "\n"))
    assert shown.split() == plain.split()
    assert max(map(len, shown.split("\n"))) <= 80


def test_a_terminal_has_colours() -> None:
    assert "\x1b[1m  do:" in on_terminal("explain", "137").out
