"""Finds the signatures of the catalogue in a log, in one pass over its bytes.

An Aho-Corasick automaton looks for the texts of all signatures at once; regular expressions judge only the lines that
contain one. A log may be mapped from a file: of 1 GB no more than a chunk is in memory.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from mmap import mmap
from typing import Final

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from rljob_doctor.catalogue import catalogue
from rljob_doctor.entry import Failure, Signature
from rljob_doctor.log_end import look_at_end, look_at_exceptions
from rljob_doctor.log_text import (
    HEARSAY,
    SPAN,
    TRANSIENT,
    around,
    is_handled,
    is_tried_again,
    newest_time,
    observed,
    text,
)
from rljob_doctor.occurrences import Occurrence, Scanned
from rljob_doctor.required_words import Group, exceptions, required_words

CHUNK: Final = 1 << 24
"""bytes that are searched at once"""
MOST_KEPT: Final = 100
"""occurrences of a failure that are kept of a log, without the last"""

COLOUR = b"\x1b"
ESCAPES = (b"\\u001b", b'\\"')
"""colours and quotes within JSON: the text of a line with these differs from what it was written as"""
EVENT = r"(?:\b(?:Warning|Normal)\b.*\b{reason}\b|\b[Rr]eason\"?[:=] *\"?{reason}\b)"
"""a Kubernetes event as kubectl, an API server or `rljob doctor JOB` writes it"""


@dataclass(slots=True)
class _Line:
    """A line in which a text was found, or of a very long one the part around the text."""

    raw: bytes
    first: int
    """offset of its first byte in the chunk"""
    reach: int
    """offset up to which a text may be in it: of a part, far enough before its end"""
    judged: set[int] = field(default_factory=set)
    """numbers of the signatures that were compared with it: one text may be in it many times"""
    words: dict[bytes, bool] = field(default_factory=dict)
    """which required words it has, of those that were looked for"""
    any_case: dict[bytes, bool] = field(default_factory=dict)
    """the same for words in any case"""
    small: bytes | None = None
    """its bytes in small letters; None: not needed yet"""
    is_plain: bool | None = None
    """whether its bytes are what was written, without colours and quotes within quotes; None: not looked for yet"""

    def has(self, word: bytes) -> bool:
        if word not in self.words:
            self.words[word] = word in self.raw
        return self.words[word]

    def has_in_any_case(self, word: bytes) -> bool:
        if word not in self.any_case:
            if self.small is None:
                self.small = self.raw.lower()
            self.any_case[word] = word in self.small
        return self.any_case[word]

    def looks_plain(self) -> bool:
        if self.is_plain is None:
            escaped = b"\\" in self.raw and any(escape in self.raw for escape in ESCAPES)
            self.is_plain = not escaped and COLOUR not in self.raw
        return self.is_plain


@dataclass(frozen=True, slots=True)
class _Probe:
    """A text of the automaton, and what it means."""

    number: int
    failure: Failure
    signature: Signature
    words: tuple[Group, ...]
    """what the signature's expression needs, beside the text"""
    quick: re.Pattern[bytes] | None
    """the signature's expression for bytes; None: it has none, or one that only the decoded line can answer"""
    spellings: tuple[bytes, ...]
    """of the signature's text, if the automaton looks for something rarer; (): the text was found"""

    def may_match(self, line: _Line) -> bool:
        """Return whether a line is worth decoding: most lines with a text are healthy ones with its metric."""
        if self.spellings and not any(line.has(each) for each in self.spellings):
            return False
        for group in self.words:
            if not any(map(line.has, group.as_written)) and not any(map(line.has_in_any_case, group.in_any_case)):
                return False
        return self.quick is None or not line.looks_plain() or self.quick.search(line.raw) is not None


@dataclass(frozen=True, slots=True)
class _Search:
    """What is looked for in a log."""

    texts: "BytesAhoCorasick"
    probes: tuple[tuple[_Probe, ...], ...]
    """what each text means, by its index"""
    clearing: dict[int, str]
    """which failure each of the last texts clears"""


def scan(name: str, data: bytes | mmap, goes_on: Callable[[], bool] = lambda: True) -> Scanned:
    """Return what a log contains; of what comes after `goes_on` says no, only how the log ends."""
    result = Scanned(name, size=len(data))
    search = _search()
    cleared: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for start, end in _chunks(data):
        chunk = data[start:end]
        counted, lines = 0, result.lines
        line: _Line | None = None
        found = () if result.unread else search.texts.find_matches_as_indexes(chunk, overlapping=True)
        for index, offset, _ in found:
            if index in search.clearing:
                cleared[search.clearing[index]] = start + offset
                continue
            if line is None or not line.first <= offset <= line.reach:
                if not goes_on():
                    result.unread = len(data) - start - offset
                    break
                line = _line(chunk, offset)
            for probe in search.probes[index]:
                if probe.number in line.judged:
                    continue
                line.judged.add(probe.number)
                if not probe.may_match(line):
                    continue
                first = start + line.first
                last, is_new = first + len(line.raw), (probe.failure.code, first) not in seen
                if is_new and _has_signature(probe, data, first, last):
                    lines += chunk.count(b"\n", counted, offset) if offset > counted else 0
                    counted = max(counted, offset)
                    _keep(probe.failure.code, data, first, last, lines + 1, result, seen)
        result.lines += chunk.count(b"\n")
    for code, offset in cleared.items():
        result.settled += [each for each in result.found.get(code, ()) if each.start <= offset]
        result.found[code] = [each for each in result.found.get(code, ()) if each.start > offset]
    result.found = {code: [_with_time(data, each) for each in found] for code, found in result.found.items() if found}
    look_at_end(data, result)
    look_at_exceptions(data, result, goes_on)
    return result


def _keep(
    code: str,
    data: bytes | mmap,
    first: int,
    last: int,
    number: int,
    result: Scanned,
    seen: set[tuple[str, int]],
) -> None:
    """Record a line with a failure's signature. Changes `result` and `seen`."""
    kept = result.found.setdefault(code, [])
    result.counts[code] = result.counts.get(code, 0) + 1
    seen.add((code, first))
    if len(kept) > MOST_KEPT:
        seen.discard((code, kept.pop().start))
    line = text(data, first, min(last, first + 2 * SPAN)).strip()
    kept.append(Occurrence(result.name, number, line, start=first))


def _with_time(data: bytes | mmap, each: Occurrence) -> Occurrence:
    """Return an occurrence with its time, which takes longer to find than the occurrence."""
    end = min(len(data), each.start + 2 * SPAN)
    newline = data.find(b"\n", each.start, end)
    return replace(each, time=newest_time(data, each.start, newline if newline >= 0 else end))


def _has_signature(probe: _Probe, data: bytes | mmap, first: int, last: int) -> bool:
    signature = probe.signature
    whole = text(data, first, last)
    line = observed(whole)
    if line != whole and signature.text not in line:
        return False
    if signature.match and not _compiled(signature.match).search(line):
        return False
    if signature.unless and _compiled(signature.unless).search(line):
        return False
    if HEARSAY.search(line) and "<|" not in signature.text and "template" not in signature.text:
        return False
    if TRANSIENT.search(line):
        return False
    if signature.unless_handled and is_handled(data, first, last):
        return False
    if probe.failure.passing and is_tried_again(data, first, last):
        return False
    if signature.near is None and signature.unless_near is None:
        return True
    near = around(data, first, last)
    if signature.near and not _compiled(signature.near).search(near):
        return False
    return not (signature.unless_near and _compiled(signature.unless_near).search(near))


def _chunks(data: bytes | mmap) -> Iterator[tuple[int, int]]:
    """Yield the bounds of chunks that end with a line."""
    start = 0
    while start < len(data):
        end = min(start + CHUNK, len(data))
        if end < len(data):
            newline = data.rfind(b"\n", start, end)
            end = newline + 1 if newline > start else end
        yield start, end
        start = end


def _line(chunk: bytes, offset: int) -> _Line:
    """Return the line around an offset, or a part of it if it is very long."""
    lowest, highest = max(0, offset - SPAN), min(len(chunk), offset + 2 * SPAN)
    newline, end = chunk.rfind(b"\n", lowest, offset), chunk.find(b"\n", offset, highest)
    first, last = newline + 1 if newline >= 0 else lowest, end if end >= 0 else highest
    return _Line(chunk[first:last], first, reach=last if end >= 0 else last - SPAN)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@cache
def _search() -> _Search:
    pairs = [(failure, signature) for failure in catalogue().values() for signature in signatures(failure)]
    by_text: dict[str, list[_Probe]] = {}
    for number, (failure, signature) in enumerate(pairs):
        probe = _probe(number, failure, signature)
        for sought in exceptions(signature.match or "") or (signature.text,):
            for each in _spellings(sought):
                by_text.setdefault(each, []).append(probe)
    clearing = [(each, failure.code) for failure in catalogue().values() for each in failure.cleared]

    patterns = [each.encode() for each in (*by_text, *(each for each, _ in clearing))]
    return _Search(
        BytesAhoCorasick(patterns, matchkind=MatchKind.Standard, implementation=Implementation.DFA),
        tuple(tuple(probes) for probes in by_text.values()),
        {len(by_text) + index: code for index, (_, code) in enumerate(clearing)},
    )


def _probe(number: int, failure: Failure, signature: Signature) -> _Probe:
    match = signature.match or ""
    return _Probe(
        number,
        failure,
        signature,
        words=required_words(match, signature.text),
        quick=re.compile(match.encode()) if match and match.isascii() else None,
        spellings=tuple(each.encode() for each in _spellings(signature.text)) if exceptions(match) else (),
    )


def _spellings(text: str) -> Sequence[str]:
    """Return a text as it is, as a string of JSON, and as a string of JSON within another."""
    once = json.dumps(text, ensure_ascii=False)[1:-1]
    return tuple(dict.fromkeys((text, once, json.dumps(once, ensure_ascii=False)[1:-1])))


def signatures(failure: Failure) -> Sequence[Signature]:
    """Return the signatures of a failure, those of its Kubernetes events included."""
    events = [Signature(text=reason, match=EVENT.format(reason=re.escape(reason))) for reason in failure.events]
    return [*failure.signatures, *events]
