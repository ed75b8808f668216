import pytest
from multidict import CIMultiDict

from rljob_api.foreign_text import printable, said, without_tokens


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\x1b]52;c;cm0gLXJm\x07", id="clipboard"),
        pytest.param("\x1b[2J", id="screen"),
        pytest.param("\u202egpj.exe", id="right to left"),
        pytest.param("a\rb", id="carriage return"),
        pytest.param("\x9b31m", id="C1"),
        pytest.param("\udc80", id="surrogate"),
        pytest.param("\x00", id="zero"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and shown.isascii()


def test_words_lines_and_other_scripts_stay() -> None:
    assert printable("größer\n\t学习 🙂 ×") == "größer\n\t学习 🙂 ×"


def test_a_long_text_is_cut_before_it_is_looked_at() -> None:
    assert printable("a" * 50_000_000, 5) == "aaaa…"


class AnswerError(Exception):
    def __repr__(self) -> str:
        return f"AnswerError({dict(CIMultiDict(Authorization='Bearer s3cret'))!r})"


def test_an_exception_is_told_by_type_and_message() -> None:
    assert said(AnswerError("bad status line")) == "AnswerError: bad status line"
    assert said(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cret",
        "headers=<CIMultiDict('Host': 'x', 'Authorization': 'Bearer s3cret')>",
        "{'authorization': 's3cret'}",
        "bearer s3cret",
        "Authorization: Basic s3cret==",
    ],
)
def test_credentials_of_headers_are_hidden(text: str) -> None:
    assert "s3cret" not in without_tokens(text)
    assert "***" in without_tokens(text)


def test_text_without_credentials_stays() -> None:
    assert without_tokens("8192 tokens in 5 steps") == "8192 tokens in 5 steps"
