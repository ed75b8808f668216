"""Answers in sentences: in colour and wrapped between words on a terminal, and as they are everywhere else."""

import re
import textwrap

from rich.text import Text

from rljob_cli.terminal import screen

LABEL = re.compile(r"^ *(?:[a-z]+:|\d+\.) +")
"""begins a line of an explanation or a diagnosis"""
VERBATIM = "    "
"""begins a line of a manifest or a log, whose indentation has a meaning"""
NEXT_LINE = 4
"""columns by which a sentence goes on in its next line, if no label says where"""
COLOURS = (
    (r"(?<=: )valid(?= \(|$)", "green"),
    (r"(?<=; )nearest valid: .+$", "green"),
    (r"^\S+?:(?= )", "bold"),
    (r"(?<=: )spec(\.[\w\[\]-]+)+(?=: )", "cyan"),
    (r"(?<=: )warning(?=: )", "yellow"),
    (r"^ *(cause|do|field|more|seen|accepted|rejected):", "bold"),
    (r"^\d+\. \w+(?=:)", "bold red"),
    (r"`[^`]+`", "cyan"),
)
"""styles of the parts of a line"""


def say_prose(text: str) -> None:
    """Write an answer to the standard output."""
    if screen.is_terminal():
        screen.show(wrapped(text, screen.size()[0]))
    else:
        screen.say(text)


def wrapped(text: str, width: int) -> Text:
    """Return the text with styles, in lines of at most `width` columns; a word that is longer stays whole."""
    return Text("\n").join(_line(line, width) for line in text.split("\n"))


def _line(line: str, width: int) -> Text:
    styled = Text(line)
    for pattern, style in COLOURS:
        styled.highlight_regex(pattern, style)
    if len(line) <= width or line.startswith(VERBATIM):
        return styled
    label = LABEL.match(line)
    hanging = " " * (label.end() if label else NEXT_LINE)
    parts = textwrap.wrap(
        line,
        width,
        subsequent_indent=hanging,
        drop_whitespace=True,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Text("\n").join(_parts(styled, parts, hanging))


def _parts(styled: Text, parts: list[str], hanging: str) -> list[Text]:
    """Return a line's parts as they were wrapped, with the styles that they had in it."""
    found, at = [], 0
    for number, part in enumerate(parts):
        plain = part.removeprefix(hanging) if number else part
        start = styled.plain.index(plain, at)
        at = start + len(plain)
        found.append(Text(hanging if number else "") + styled[start:at])
    return found
