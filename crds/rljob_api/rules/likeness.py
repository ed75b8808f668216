"""The option that a word resembles most, at a price that does not grow with the word. Pure."""

import difflib
from collections.abc import Iterable

LONGEST_COMPARED = 100
"""of a word: no name is longer, and a comparison takes the product of two lengths [characters]"""


def similar(word: str, options: Iterable[str], cutoff: float) -> str | None:
    """Return the option that a word resembles most as it stands; None: none, or the word is too long."""
    close = difflib.get_close_matches(word, options, n=1, cutoff=cutoff) if len(word) <= LONGEST_COMPARED else []
    return close[0] if close else None
