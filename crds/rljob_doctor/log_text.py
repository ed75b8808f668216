"""Reads pieces of a log's bytes: without colours, with the newest time, and whether a line proves anything. Pure."""

import re
from collections.abc import Iterable
from itertools import takewhile
from mmap import mmap
from typing import Final

SPAN: Final = 2000
"""bytes of a line on either side of a text; a line of JSON may have megabytes"""
BEFORE, AFTER = 6000, 3000
"""bytes around a line that count as near"""
IGNORED = "Exception ignored in"
TRACEBACK = "Traceback (most recent call last)"

ANSI = re.compile(r"(?:\x1b|\\u001[bB]|\\x1[bB])\[[0-9;]*[A-Za-z]")
QUOTE = re.compile(r'\\+"')
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
TRANSIENT = re.compile(
    r"\b[Rr]etrying\b|\b[Ww]ill (?:be retried|retry)\b|\battempt \d+ ?(?:/|of) ?\d+\b(?! failed)"
    r"|\b[Ff](?:alling|all) back (?:to|on)\b|\b[Ff]allback to\b|\bException ignored in\b"
    r"|\bW\d{4} [\d:.]+ .*\btorch/_(?:dynamo|inductor)/"
    r"|\bfailed to sync (?:configmap|secret) cache\b"
)
"""a line about something that is tried again, or done in another way, proves nothing"""
HEARSAY = re.compile(
    r"(?<!['\"`])<\|im_(?:start|end)\|>|<(?:tool_response|think|answer)>"
    r"|\b(?:response|prompt|completion|question)\\?[\"']?: ?\\?[\"'\[]"
    r"|\b(?:[Ii]f|[Ww]hen) (?:you|the log|a log|it) (?:see|say|show)s?\b|\bFAQ: |::test_\w+ (?:PASSED|SKIPPED)"
    r"|\bcommit [0-9a-f]{3,40}(?:: |$)|\b[0-9a-f]{7,40} (?:Add|Fix|Merge|Remove|Revert|Update)\b"
    r"|\* \[new (?:branch|tag)\]|\[__\w+\]"
)
"""a line that quotes a model, a page, a test or a commit: it is about a failure, which need not have happened"""
DIAGNOSED = re.compile(r"\battempt \d+: .*?\. Seen: ")
"""the catalogue's own words in an event of a job; what follows is a line that was seen"""
HANDLED = re.compile(
    r"(?i)\bretr(?:y|ies|ying)\b|Exception ignored in|\bskip(?:s|ped|ping)\b(?! step)|\bfall(?:s|ing)? ?back\b"
    r"|\bcaught\b|\brecover(?:s|ed|ing)\b|\bcontinu(?:es|ing)\b|\bignor(?:ed|ing)\b"
    r"|\btool[ _](?:response|result|output|call)\b|<\|"
    r"|\bagent function failed\b|\bmark(?:s|ed|ing)? (?:the )?(?:sample|group|trajectory)s? as (?:aborted|failed)\b"
)
"""a line before a traceback, or soon after it, that says that the program continues"""
GAVE_UP = re.compile(
    r"(?i)\bmax(?:imum)?\b[\w ]* (?:retries|attempts)\b|\b(?:retries|attempts) (?:exceeded|exhausted|failed)\b"
    r"|\bafter \d+ (?:\w+ )?(?:retries|attempts|tries)\b|\bg(?:ave|iving) up\b"
    r"|\b(?:attempt|try|retry) (\d+) ?(?:/|of) ?\1\b"
)
"""a line that says that nothing is tried again"""


def text(data: bytes | mmap, first: int, last: int) -> str:
    read = bytes(data[first:last]).decode("utf-8", "replace")
    if "\x1b" in read or "\\u001" in read or "\\x1" in read:
        read = ANSI.sub("", read)
    return QUOTE.sub('"', read) if '\\"' in read else read


def observed(line: str) -> str:
    """Return a line without what the catalogue says of it."""
    return DIAGNOSED.sub("", line)


def newest_time(data: bytes | mmap, first: int, last: int) -> str:
    """Return the newest time up to the end of a line."""
    times = TIME.findall(text(data, first, last)) or TIME.findall(text(data, max(0, first - BEFORE), first))
    return times[-1].replace("T", " ") if times else ""


def around(data: bytes | mmap, first: int, last: int) -> str:
    """Return the lines near the one with these bounds, and the line."""
    return text(data, max(0, first - BEFORE), min(len(data), last + AFTER))


def is_beside_the_point(line: str) -> bool:
    return bool(HEARSAY.search(line) or TRANSIENT.search(line))


def is_handled(data: bytes | mmap, first: int, last: int) -> bool:
    """Return whether the log says that an exception was dealt with: before its traceback, or in the lines after it."""
    before = _before_traceback(data, first) or text(data, max(0, first - BEFORE), first).split("\n")[-2:]
    return _goes_on((*before, *_after(data, last)))


def is_tried_again(data: bytes | mmap, first: int, last: int) -> bool:
    """Return whether the log says that a request was sent again, and not that it was sent too often.

    Lines before it do not count without a traceback: they are of the tries before this one.
    """
    if GAVE_UP.search(text(data, first, last)):
        return False
    return _goes_on((*_before_traceback(data, first), *_after(data, last)))


def _before_traceback(data: bytes | mmap, first: int) -> list[str]:
    """Return the lines before the last traceback that begins before an offset; []: there is none."""
    before = text(data, max(0, first - BEFORE), first).split("\n")
    starts = [index for index, line in enumerate(before) if TRACEBACK in line]
    return before[max(0, starts[-1] - 2) : starts[-1] + 1] if starts else []


def _after(data: bytes | mmap, last: int) -> list[str]:
    """Return the next lines, up to an exception of a finalizer: that one is ignored, and not the one before it."""
    after = text(data, last, min(len(data), last + SPAN)).split("\n")[:4]
    return list(takewhile(lambda line: IGNORED not in line, after))


def _goes_on(lines: Iterable[str]) -> bool:
    return any(HANDLED.search(line) and not GAVE_UP.search(line) for line in lines)
