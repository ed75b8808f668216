"""What a user may name: functions, and words of which the closest is suggested."""

import re
from collections.abc import Iterable

from rljob_api.rules.claims import Search
from rljob_api.rules.likeness import LONGEST_COMPARED, similar
from rljob_api.rules.terms import Field

WORD = "[A-Za-z_][A-Za-z0-9_]*"  # not \w, which is ASCII in CEL and is not in Python
FUNCTION = re.compile(rf"{WORD}([.]{WORD})*:{WORD}")
"""`module:function`"""


def closest(word: str, options: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the option that a word resembles most, in any case and with any separators."""
    by_letters = {letters(option): option for option in options}
    close = similar(letters(word), by_letters, cutoff) if len(word) <= LONGEST_COMPARED else None
    return by_letters[close] if close is not None else None


def letters(text: str) -> str:
    """Return a text without case and separators: `round_robin`, `RoundRobin` and `round-robin` are the same."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def with_colon(function: str) -> str | None:
    """Return the text of the form module:function that a word without a colon, or with a file's path, may mean."""
    path = function.removeprefix("./").replace(".py:", ":").replace("/", ".") if ":" in function else function
    module, _, name = path.replace(":", ".").rpartition(".")
    return f"{module}:{name}" if FUNCTION.fullmatch(f"{module}:{name}") else None


def colon_in(field: Field) -> Search:
    """Return the search for the text of the form module:function that a field may mean."""
    dotted = f"{field.cel}.replace(':', '.')"
    dot = f"{dotted}.lastIndexOf('.')"
    meant = f"{dotted}.substring(0, {dot}) + ':' + {dotted}.substring({dot} + 1)"
    found = f"{dot} > 0 && ({meant}).matches('^{FUNCTION.pattern}$') ? {meant} : ''"
    return Search(lambda spec: with_colon(field.of(spec)), cel=(found,))
