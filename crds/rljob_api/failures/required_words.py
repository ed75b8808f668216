"""Says which words a line needs for a regular expression to match it: a search for words is much faster. Pure."""

import re
from collections.abc import Iterable, Sequence

# There is no public way to read a parsed expression; Python 3.11 and 3.12 have this module, with the same names.
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

SHORTEST: Final = 3
"""letters of a word that is worth a search"""
MOST: Final = 30
"""words of which one must be there"""
EXCEPTION = re.compile(r"[A-Z]\w*(?:Error|Exception)|Error|Exception")
"""a word that healthy logs hardly have, unlike the name of an option"""
Words = tuple[tuple[bytes, ...], ...]
"""a line needs one word of each group"""


def required_words(expression: str, text: str) -> Words:
    """Return what every line needs that an expression matches, beside a text that it has anyway.

    Of a word in any case these spellings are known: as it is written, error, Error and ERROR.
    """
    parsed = parser.parse(expression)
    groups = _groups(parsed, bool(parsed.state.flags & re.IGNORECASE))
    useful = [group for group in groups if _is_useful(group) and not any(word in text for word in group)]
    return tuple(tuple(sorted(word.encode() for word in group)) for group in useful)


def exceptions(expression: str) -> tuple[str, ...]:
    """Return classes of exceptions of which every line needs one that an expression matches; (): it needs none."""
    parsed = parser.parse(expression)
    if parsed.state.flags & re.IGNORECASE:
        return ()
    groups = [group for group in _groups(parsed, False) if group and all(map(EXCEPTION.fullmatch, group))]
    return min((tuple(sorted(group)) for group in groups), key=len, default=())


def _is_useful(group: frozenset[str]) -> bool:
    return 0 < len(group) <= MOST and min(map(len, group)) >= SHORTEST


def _groups(items: Iterable[tuple[Any, Any]], any_case: bool) -> list[frozenset[str]]:
    """Return groups of words; text that matches these items in their order has a word of each.

    A word has only letters and digits: colours and quotes may stand between others.
    """
    groups, run = [], ""
    for kind, argument in items:
        if kind is op.LITERAL and (chr(argument).isalnum() or chr(argument) == "_"):
            run += chr(argument)
            continue
        groups += [_spellings(run, any_case)] if run else []
        run = ""
        if kind is op.BRANCH:
            groups += _of_branches(argument[1], any_case)
        elif kind is op.SUBPATTERN:
            groups += _groups(argument[3], any_case or bool(argument[1] & re.IGNORECASE))
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT) and argument[0] >= 1:
            groups += _groups(argument[2], any_case)
        elif kind is op.ATOMIC_GROUP:
            groups += _groups(argument, any_case)
    return [*groups, _spellings(run, any_case)] if run else groups


def _of_branches(branches: Sequence[Iterable[tuple[Any, Any]]], any_case: bool) -> list[frozenset[str]]:
    """Return one group with the longest words of each branch; []: a branch needs none."""
    found = [_groups(each, any_case) for each in branches]
    best = [max(groups, key=lambda group: min(map(len, group)), default=frozenset[str]()) for groups in found]
    return [frozenset().union(*best)] if all(best) else []


def _spellings(word: str, any_case: bool) -> frozenset[str]:
    return frozenset((word, word.lower(), word.capitalize(), word.upper())) if any_case else frozenset((word,))
