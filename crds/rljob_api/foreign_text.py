"""Text of others, made safe to print, log and store: answers of heads, names of files, messages of exceptions.

Everything that stands between such text and a terminal, a log or a status calls one of these functions.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

LONGEST = 2_000
"""[characters]"""

_SECRETS = re.compile(
    r"(?i)\b(bearer|basic)(\s+|%20)[\w.~+/=-]+|(?<=['\"]authorization['\"])(\s*[:,]\s*)(['\"])[^'\"]*\4"
)
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, longest: int | None = None) -> str:
    """Return the text with control, bidirectional and unpaired characters escaped; newlines and tabs stay.

    With `longest`, the text is cut before it is looked at, and ends in `…` [characters].
    """
    if longest is not None and len(text) > longest:
        text = text[: max(0, longest - 1)] + "…"
    plain = text.replace("\n", "").replace("\t", "")
    return text if plain.isprintable() and not _BIDIRECTIONAL & set(plain) else "".join(map(_printable, text))


def printable_value(value: Any) -> Any:
    """Return a value of JSON with all its texts printable, names of fields among them."""
    match value:
        case str():
            return printable(value)
        case Mapping():
            return {printable_value(key): printable_value(each) for key, each in value.items()}
        case list():
            return [printable_value(each) for each in value]
        case _:
            return value


def first_bytes(text: str, longest: int) -> str:
    """Return the first whole characters that fit into `longest` bytes of UTF-8."""
    return text.encode(errors="replace")[:longest].decode(errors="ignore")


def said(error: BaseException, longest: int = LONGEST) -> str:
    """Return type and message of an exception of others; never its `repr`, which may hold the headers of a request."""
    text = str(error)[: longest * 2]
    return without_tokens(printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, longest))


def without_tokens(text: str) -> str:
    """Return the text without the values of credentials that stand in HTTP headers."""
    return _SECRETS.sub(_hidden, text)


class TokenlessFormatter(logging.Formatter):
    """Writes log lines without credentials: messages of libraries may hold the headers of a request."""

    def format(self, record: logging.LogRecord) -> str:
        return without_tokens(super().format(record))


def _hidden(match: re.Match[str]) -> str:
    if match[1]:
        return f"{match[1]}{match[2]}***"
    return f"{match[3]}{match[4]}***{match[4]}"


def _printable(char: str) -> str:
    if char in "\n\t" or (char.isprintable() and char not in _BIDIRECTIONAL):
        return char
    return ascii(char)[1:-1]
