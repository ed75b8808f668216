"""Says which words a line needs for a regular expression to match it: a search for words is much faster. Pure."""

import re
from collections.abc import Iterable, Sequence

# There is no public way to read a parsed expression; Python 3.11 and 3.12 have this module, with the same names.
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

SHORTEST: Final = 3
"""letters of a word that is worth a search"""
MOST: Final = 30
"""words of which one must be there"""
EXCEPTION = re.compile(r"[A-Z]\w*(?:Error|Exception)|Error|Exception")
"""a word that healthy logs hardly have, unlike the name of an option"""


class Group(NamedTuple):
    """Words of which a line needs one."""

    as_written: tuple[bytes, ...]
    in_any_case: tuple[bytes, ...]
    """words in small letters that a line may have in any case"""


class _Word(NamedTuple):
    letters: str
    any_case: bool


def required_words(expression: str, text: str) -> tuple[Group, ...]:
    """Return what every line needs that an expression matches, beside a text that it has anyway."""
    parsed = parser.parse(expression)
    groups = _groups(parsed, bool(parsed.state.flags & re.IGNORECASE))
    return tuple(_group(each) for each in groups if _is_useful(each) and not any(_is_in(text, word) for word in each))


def exceptions(expression: str) -> tuple[str, ...]:
    """Return classes of exceptions of which every line needs one that an expression matches; (): it needs none."""
    parsed = parser.parse(expression)
    if parsed.state.flags & re.IGNORECASE:
        return ()
    groups = [{word.letters for word in group} for group in _groups(parsed, False)]
    classes = [group for group in groups if group and all(map(EXCEPTION.fullmatch, group))]
    return min((tuple(sorted(group)) for group in classes), key=len, default=())


def _group(words: frozenset[_Word]) -> Group:
    return Group(
        tuple(sorted(word.letters.encode() for word in words if not word.any_case)),
        tuple(sorted(word.letters.encode() for word in words if word.any_case)),
    )


def _is_in(text: str, word: _Word) -> bool:
    return word.letters in (text.lower() if word.any_case else text)


def _is_useful(group: frozenset[_Word]) -> bool:
    return 0 < len(group) <= MOST and _shortest(group) >= SHORTEST


def _shortest(group: frozenset[_Word]) -> int:
    return min((len(word.letters) for word in group), default=0)


def _groups(items: Iterable[tuple[Any, Any]], any_case: bool) -> list[frozenset[_Word]]:
    """Return groups of words; text that matches these items in their order has a word of each.

    A word has only letters and digits: colours and quotes may stand between others.
    """
    groups, run = [], ""
    for kind, argument in items:
        if kind is op.LITERAL and (chr(argument).isalnum() or chr(argument) == "_"):
            run += chr(argument)
            continue
        groups += [_word(run, any_case)] if run else []
        run = ""
        if kind is op.BRANCH:
            groups += _of_branches(argument[1], any_case)
        elif kind is op.SUBPATTERN:
            groups += _groups(argument[3], any_case or bool(argument[1] & re.IGNORECASE))
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT) and argument[0] >= 1:
            groups += _groups(argument[2], any_case)
        elif kind is op.ATOMIC_GROUP:
            groups += _groups(argument, any_case)
    return [*groups, _word(run, any_case)] if run else groups


def _of_branches(branches: Sequence[Iterable[tuple[Any, Any]]], any_case: bool) -> list[frozenset[_Word]]:
    """Return one group with the longest words of each branch; []: a branch needs none."""
    found = [_groups(each, any_case) for each in branches]
    best = [max(groups, key=_shortest, default=frozenset[_Word]()) for groups in found]
    return [frozenset().union(*best)] if all(best) else []


def _word(letters: str, any_case: bool) -> frozenset[_Word]:
    return frozenset((_Word(letters.lower() if any_case else letters, any_case),))
