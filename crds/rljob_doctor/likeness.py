"""Says which failure a line is most like, by the words that it shares with the catalogue's own texts. Pure.

This is for lines of programs whose wording no signature and no rule has. A word counts by how few failures have it. A
line with too little in common, or as much with two failures, is like none.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from functools import cache
from typing import Final, NamedTuple

from rljob_doctor.catalogue import catalogue
from rljob_doctor.entry import Failure, Level

ENOUGH: Final = 4.5
"""score from which a line is like a failure"""
AHEAD: Final = 0.5
"""by which the best score must exceed the second one"""
SIGNATURE, EXAMPLE, EXPLANATION = 3, 2, 1
"""how much a word counts, by where the catalogue has it"""
LONG: Final = 5
"""letters of a word above which its ending does not count"""
WORD = re.compile(r"[A-Za-z]{3,}")
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""where the words of `FailedMount` meet"""
ENDING = re.compile(r"(?:ing|ed|es|s)$")
ESCAPE = re.compile(r"\\[a-zA-Z]")
"""a class of characters in a regular expression"""
COMMON = frozenset(
    re.findall(
        r"\w+",
        "the and for not that with its from this are was has have than which can may you when will one two more all any"
        " raise lower set read run use rljob job spec your does log line file error fail failed failure python",
    )
)
"""words that say nothing of the topic"""


class _Texts(NamedTuple):
    words: Mapping[str, int]
    size: float


def most_like(line: str) -> str | None:
    """Return the code of the failure that a line is most like; None: it is like none, or like several."""
    sought = words(line)
    known = _known()
    rare = _rareness()
    scores = ((_score(sought, texts, rare), code) for code, texts in known.items())
    (best, code), (second, _) = heapq.nlargest(2, scores)
    return code if best >= ENOUGH and best - second >= AHEAD else None


def words(text: str) -> frozenset[str]:
    """Return the words of a text that may name its topic, in small letters and without endings."""
    found = (word.lower() for word in WORD.findall(HUMP.sub(" ", text)))
    return frozenset(ENDING.sub("", word) if len(word) > LONG else word for word in found) - COMMON


def _score(sought: Set[str], texts: _Texts, rare: Mapping[str, float]) -> float:
    shared = sought & texts.words.keys()
    return sum(rare[word] * (1 + math.log(texts.words[word])) for word in shared) / texts.size


@cache
def _known() -> Mapping[str, _Texts]:
    ends = (failure for failure in catalogue().values() if failure.level is not Level.HINT)
    return {failure.code: _texts(failure) for failure in ends}


@cache
def _rareness() -> Mapping[str, float]:
    """Return for each word of the catalogue how much it says."""
    known = _known()
    count = Counter(word for texts in known.values() for word in texts.words)
    return {word: math.log(len(known) / failures) for word, failures in count.items()}


def _texts(failure: Failure) -> _Texts:
    found: Counter[str] = Counter()
    for signature in failure.signatures:
        _add(found, words(signature.text), SIGNATURE)
        _add(found, words(ESCAPE.sub(" ", signature.match or "")), EXPLANATION)
    for event in failure.events:
        _add(found, words(event), SIGNATURE)
    _add(found, words(failure.example or ""), EXAMPLE)
    _add(found, words(failure.title), EXAMPLE)
    _add(found, words(failure.cause), EXPLANATION)
    return _Texts(found, sum(weight**2 for weight in found.values()) ** 0.25)


def _add(found: Counter[str], new: Iterable[str], weight: int) -> None:
    for word in new:
        found[word] += weight
