"""Finds the signatures of the catalogue in a log, in one pass over its bytes.

An Aho-Corasick automaton looks for the texts of all signatures at once; regular expressions judge only the lines that
contain one. A log may be mapped from a file: of 1 GB no more than a chunk is in memory.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from mmap import mmap
from typing import Final

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from rljob_api.failures.catalogue import catalogue
from rljob_api.failures.entry import Failure, Signature
from rljob_api.failures.topics import code_of_exception, code_of_line, frames

CHUNK: Final = 1 << 24
"""bytes that are searched at once"""
SPAN: Final = 2000
"""bytes of a line on either side of a text; a line of JSON may have megabytes"""
BEFORE, AFTER = 6000, 3000
"""bytes around a line that count as near"""
MOST_KEPT: Final = 100
"""occurrences of a failure that are kept of a log, without the last"""
END: Final = 1 << 16
"""bytes at the end of a log that say whether the run succeeded"""

ESCAPES = (b"\x1b", b"\\u001b", b'\\"')
"""bytes of a line whose text differs from what it was written as: colours, and quotes within JSON"""
ANSI = re.compile(r"(?:\x1b|\\u001[bB]|\\x1[bB])\[[0-9;]*[A-Za-z]")
QUOTE = re.compile(r'\\+"')
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
TRANSIENT = re.compile(
    r"\b[Rr]etrying\b|\b[Ww]ill (?:be retried|retry)\b|\battempt \d+ ?(?:/|of) ?\d+\b(?! failed)"
    r"|\b[Ff](?:alling|all) back (?:to|on)\b|\b[Ff]allback to\b|\bException ignored in\b"
)
"""a line about something that is tried again, or done in another way, proves nothing"""
HEARSAY = re.compile(
    r"<\|im_(?:start|end)\|>|<(?:tool_response|think|answer)>"
    r"|\b(?:response|prompt|completion|question)\\?[\"']?: ?\\?[\"'\[]"
    r"|\b(?:[Ii]f|[Ww]hen) (?:you|the log|a log|it) (?:see|say|show)s?\b|\bFAQ: |::test_\w+ (?:PASSED|SKIPPED)"
    r"|\bcommit [0-9a-f]{3,40}(?:: |$)|\b[0-9a-f]{7,40} (?:Add|Fix|Merge|Remove|Revert|Update)\b"
    r"|\* \[new (?:branch|tag)\]|\[__\w+\]"
)
"""a line that quotes a model, a page, a test or a commit: it is about a failure, which need not have happened"""
SUCCESS = re.compile(
    r"Job '[\w-]+' succeeded"
    r"|\"kind\": ?\"end\".*\"outcome\": ?\"finished\""
    r"|\bjobDeploymentStatus: Complete\b"
    r"|^condition Succeeded \w+: "
)
"""Ray's client, the events of a run, a RayJob, and a job's status"""
PREFIX = (
    r"(?:\([^)]*\) ?|[\w.-]*\[[^\]]*\]:? ?|\S+ std(?:err|out) F |[│|>]\s*|std(?:err|out): ?"
    r"|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)?\s+|(?:[\w./-]+\.py:\d+\] ?)"
    r"|(?:ERROR|CRITICAL|FATAL):? (?:[\d-]+ [\d:.]+ )?(?:\S+:\d+:? )?(?:-- )?|(?:[Ee]rror|E): )*\s*"
)
"""what Ray, torchrun, loggers and collectors write before a line of a process"""
CLASS = r"(?:(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)|(?:\w+\.)+_?(?:exceptions?|errors?)\.[A-Z]\w+)\b"
EXCEPTION = re.compile(rf"^{PREFIX}({CLASS}(?:\(\w+\))?(?:: .+|:?\s*$|\s+Traceback \(most recent call last\)))")
FRAME = re.compile(rf'^{PREFIX}File "[^"]+", line \d+, in \S+')
"""a frame of a traceback"""
RAISED = re.compile(rf"({CLASS})(?:\((\w+)\))?:? *(.*)")
"""an exception anywhere in a line: its class, the class that Ray passes on, and the message"""
UNKNOWN: Final = "PythonException"
"""the entry of exceptions that no other entry knows"""
HANDLED = re.compile(
    r"(?i)\bretr(?:y|ies|ying)\b|Exception ignored in|\bskip(?:s|ped|ping)\b|\bfall(?:s|ing)? ?back\b|\bcaught\b"
    r"|\brecover(?:s|ed|ing)\b|\bcontinu(?:es|ing)\b|\bignor(?:ed|ing)\b"
    r"|\btool[ _](?:response|result|output|call)\b|<\|"
)
"""a line before a traceback, or soon after it, that says that the program goes on"""
LOOKS_LIKE_ERROR = re.compile(
    r"(?i)\bfail(?:ed|ure|s)?\b|\b(?:unable|inability|not possible) to\b|\bcould ?n(?:o|')?t\b|\bcannot\b|\bcan't\b"
    r"|\b(?:denied|refused|forbidden|unauthorized|killed|invalid|crashed|unschedulable|evicted|deadlock)\b"
    r"|\btimed out\b|\btime-?out (?:expired|exceeded|waiting|while|after|error)\b|\b(?:rpc|cuda|hip|rocm) error\b"
    r"|(?-i:\b[Ee]rror[: ])|\bnot (?:found|ready|available|enough)\b|\bno (?:such|space)\b"
    r"|\bdeadline exceeded\b|\bpanic:"
)
"""a line that may say why a program ended, however it is written"""
NO_ERROR = re.compile(
    r"\b(?:INFO|DEBUG|WARN|WARNING|TRACE|Normal)\b|\b[IW]\d{4} \d\d:\d\d|level=\"?(?:info|warn|debug)"
    r"|\"level\": ?\"info|\[[IW] |\b[IW] \d+ \d+\]| W\]|[a-z]Warning: |File \"|\\n|\braise \w|: success\b"
    r"|\b0 (?:failed|errors?|failures?)\b|[:=] ?0(?![.:x\d])|\bcount 0\b"
    r"|the object has been modified|\bwon't affect\b|[Rr]eadiness probe|[Hh]ealth check failed"
    r"|\b(?:[Ii]f|[Ww]hen|[Uu]nless|until|in case)\b[^.]*\b(?:fail\w*|not|cannot|error|invalid|denied)\b"
    r"|\b(?:may|might)\b"
)
"""a line that looks like an error and is none, or not alone: by its level, or because it speaks of what could happen"""
TRACEBACK = "Traceback (most recent call last)"
SHORT: Final = 12
"""characters of a message that goes on in the next lines"""
LAST_WORDS: Final = 50
"""lines after an exception without a traceback up to which it counts as the end of its log"""
EVENT = r"(?:\b(?:Warning|Normal)\b.*\b{reason}\b|\b[Rr]eason\"?[:=] *\"?{reason}\b)"
"""a Kubernetes event as kubectl, an API server or `rljob doctor JOB` writes it"""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A line of a log that has a failure's signature."""

    log: str
    line: int
    """counted from 1"""
    text: str
    time: str = ""
    """newest time that the log names up to this line, as `2026-01-31 23:59:59`; "": none"""
    start: int = 0
    """offset of the line's first byte"""


@dataclass(slots=True)
class Scanned:
    """What was found in one log."""

    name: str
    found: dict[str, list[Occurrence]] = field(default_factory=dict)
    """occurrences by code, in their order"""
    counts: dict[str, int] = field(default_factory=dict)
    """all occurrences, those that are not kept included"""
    lines: int = 0
    size: int = 0
    """bytes"""
    succeeded_at: int = -1
    """offset of the last line that says that the run ended well, if it is near the end; -1: none"""
    last_exception: Occurrence | None = None
    """the last exception of Python, known or not"""
    last_frame: Occurrence | None = None
    """the last frame of a traceback whose exception the log does not have; None: it has all"""
    last_errors: dict[str, list[Occurrence]] = field(default_factory=dict)
    """lines at the end that look like errors and that no signature knows, by the code that their words suggest"""
    inferred: dict[str, list[Occurrence]] = field(default_factory=dict)
    """exceptions that no signature knows, by the code that their class, words and frames suggest"""

    @property
    def last_words(self) -> Occurrence | None:
        """The last exception, if the log ends with it, or the last frame of a traceback that is cut off."""
        last = self.last_frame or self.last_exception
        return last if last and self.lines - last.line < LAST_WORDS else None


@dataclass(frozen=True, slots=True)
class _Probe:
    """A text of the automaton, and what it means."""

    failure: Failure
    signature: Signature
    quick: re.Pattern[bytes] | None = None
    """the signature's expression for bytes; None: it has none, or one that only the decoded line can answer"""

    def may_match(self, chunk: bytes, first: int, last: int) -> bool:
        """Return whether a line is worth decoding: most lines with a text are healthy ones with its metric."""
        if self.quick is None or self.quick.search(chunk, first, last) is not None:
            return True
        return any(chunk.find(escape, first, last) >= 0 for escape in ESCAPES)


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a line is in its log."""

    first: int
    last: int
    """offsets of its bytes"""
    number: int


def scan(name: str, data: bytes | mmap) -> Scanned:
    """Return what a log contains."""
    result = Scanned(name, size=len(data))
    automaton, probes, clearing = _automaton()
    cleared: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for start, end in _chunks(data):
        chunk = data[start:end]
        counted, lines = 0, result.lines
        for index, offset, _ in automaton.find_matches_as_indexes(chunk, overlapping=True):
            if index in clearing:
                cleared[clearing[index]] = start + offset
                continue
            first, last = _line(chunk, offset)
            for probe in probes[index]:
                if probe.may_match(chunk, first, last):
                    lines += chunk.count(b"\n", counted, offset) if offset > counted else 0
                    counted = max(counted, offset)
                    line = _Line(start + first, start + last, lines + 1)
                    _judge(probe, data, line, result, seen)
        result.lines += chunk.count(b"\n")
    for code, offset in cleared.items():
        result.found[code] = [each for each in result.found.get(code, ()) if each.start > offset]
    result.found = {code: found for code, found in result.found.items() if found}
    _look_at_end(data, result)
    _look_at_exceptions(data, result)
    return result


def _judge(
    probe: _Probe,
    data: bytes | mmap,
    line: _Line,
    result: Scanned,
    seen: set[tuple[str, int]],
) -> None:
    """Record what a text means that was found in a line. Changes `result` and `seen`."""
    code, first, last = probe.failure.code, line.first, line.last
    if (code, first) in seen or not _has_signature(probe.signature, data, first, last):
        return
    kept = result.found.setdefault(code, [])
    result.counts[code] = result.counts.get(code, 0) + 1
    seen.add((code, first))
    if len(kept) > MOST_KEPT:
        seen.discard((code, kept.pop().start))
    kept.append(Occurrence(result.name, line.number, _text(data, first, last).strip(), _time(data, first, last), first))


def _has_signature(signature: Signature, data: bytes | mmap, first: int, last: int) -> bool:
    line = _text(data, first, last)
    if signature.match and not _compiled(signature.match).search(line):
        return False
    if signature.unless and _compiled(signature.unless).search(line):
        return False
    if HEARSAY.search(line) and "<|" not in signature.text and "template" not in signature.text:
        return False
    if TRANSIENT.search(line) and "etry" not in signature.text:
        return False
    if signature.unless_handled and _is_handled(data, first, last):
        return False
    if signature.near is None and signature.unless_near is None:
        return True
    around = _text(data, max(0, first - BEFORE), min(len(data), last + AFTER))
    if signature.near and not _compiled(signature.near).search(around):
        return False
    return not (signature.unless_near and _compiled(signature.unless_near).search(around))


def _is_beside_the_point(line: str) -> bool:
    return bool(HEARSAY.search(line) or TRANSIENT.search(line))


def _is_handled(data: bytes | mmap, first: int, last: int) -> bool:
    """Return whether the log says that an exception was dealt with: before its traceback, or in the lines after it."""
    before = _text(data, max(0, first - BEFORE), first).split("\n")
    starts = [index for index, line in enumerate(before) if TRACEBACK in line]
    said = before[max(0, starts[-1] - 2) : starts[-1] + 1] if starts else before[-2:]
    after = _text(data, last, min(len(data), last + SPAN)).split("\n")[:4]
    return any(HANDLED.search(line) for line in (*said, *after))


def _look_at_end(data: bytes | mmap, result: Scanned) -> None:
    """Set where the run succeeded, its last exception, and where its last traceback is cut off."""
    offset = max(0, len(data) - END)
    number = result.lines - bytes(data[offset:]).count(b"\n")
    for line in bytes(data[offset:]).split(b"\n"):
        number += 1
        text = _text(line, 0, min(len(line), 2 * SPAN))
        if SUCCESS.search(text):
            result.succeeded_at = offset
        found = EXCEPTION.match(text)
        if FRAME.match(text) and not _is_beside_the_point(text) and not _is_handled(data, offset, offset + len(line)):
            result.last_frame = Occurrence(result.name, number, text.strip(), start=offset)
        if found:
            result.last_frame = None
        elif result.lines - number < LAST_WORDS:
            _look_for_topic(data, _Line(offset, offset + len(line), number), text, result)
        if found and not _is_beside_the_point(text) and not _is_handled(data, offset, offset + len(line)):
            result.last_exception = Occurrence(result.name, number, found[1], start=offset)
        offset += len(line) + 1


def _look_for_topic(data: bytes | mmap, line: _Line, text: str, result: Scanned) -> None:
    """Note a line that looks like an error, with the code that its words suggest."""
    if not LOOKS_LIKE_ERROR.search(text) or NO_ERROR.search(text) or _is_beside_the_point(text):
        return
    code = code_of_line(text)
    if code is not None and not _is_handled(data, line.first, line.last):
        seen = Occurrence(result.name, line.number, text.strip(), start=line.first)
        result.last_errors.setdefault(code, []).append(seen)


def _look_at_exceptions(data: bytes | mmap, result: Scanned) -> None:
    """Set what the exceptions are that no signature knows."""
    unknown = [*result.found.get(UNKNOWN, ()), *([result.last_words] if result.last_words else [])]
    known = {each.start for code, found in result.found.items() if code != UNKNOWN for each in found}
    for start, each in {each.start: each for each in unknown if each.start not in known}.items():
        raised = RAISED.search(each.text)
        if FRAME.match(each.text):
            before = _text(data, max(0, start - BEFORE), start)
            code = code_of_exception("", (*frames(before), *frames(each.text)))
        elif raised and "can't be subclassed" not in each.text:
            code = code_of_exception(*_error_and_frames(data, start, raised))
        else:
            code = None
        if code is not None:
            result.inferred.setdefault(code, []).append(each)


def _error_and_frames(data: bytes | mmap, start: int, raised: re.Match[str]) -> tuple[str, Sequence[str]]:
    """Return an exception as `Class: message`, with the frames of its traceback."""
    name, passed_on, message = raised[1].rpartition(".")[2], raised[2], raised[3]
    after = _text(data, start, min(len(data), start + AFTER)).split("\n", 1)
    rest = after[1] if len(after) > 1 else ""
    if passed_on or message.startswith(TRACEBACK):
        return f"{passed_on or name}: ", frames(rest)
    if len(message) < SHORT:
        message = f"{message} {' '.join(rest.split(chr(10))[:2])}"
    return f"{name}: {message}", frames(_text(data, max(0, start - BEFORE), start))


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


def _line(data: bytes, offset: int) -> tuple[int, int]:
    """Return the bounds of the line around an offset, or of a part of it if it is very long."""
    lowest, highest = max(0, offset - SPAN), min(len(data), offset + SPAN)
    first = data.rfind(b"\n", lowest, offset) + 1
    last = data.find(b"\n", offset, highest)
    return first or lowest, highest if last < 0 else last


def _text(data: bytes | mmap, first: int, last: int) -> str:
    text = ANSI.sub("", bytes(data[first:last]).decode("utf-8", "replace"))
    return QUOTE.sub('"', text) if '\\"' in text else text


def _time(data: bytes | mmap, first: int, last: int) -> str:
    """Return the newest time up to the end of a line."""
    times = TIME.findall(_text(data, max(0, first - BEFORE), last))
    return times[-1].replace("T", " ") if times else ""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@cache
def _automaton() -> tuple[BytesAhoCorasick, tuple[tuple[_Probe, ...], ...], dict[int, str]]:
    """Return the search for all texts, what each means by its index, and which failure each of the last ones clears."""
    by_text: dict[str, list[_Probe]] = {}
    for failure in catalogue().values():
        for signature in signatures(failure):
            for text in _spellings(signature.text):
                by_text.setdefault(text, []).append(_Probe(failure, signature, _quick(signature)))
    clearing = [(text, failure.code) for failure in catalogue().values() for text in failure.cleared]
    patterns = [text.encode() for text in (*by_text, *(text for text, _ in clearing))]
    return (
        BytesAhoCorasick(patterns, matchkind=MatchKind.Standard, implementation=Implementation.DFA),
        tuple(tuple(probes) for probes in by_text.values()),
        {len(by_text) + index: code for index, (_, code) in enumerate(clearing)},
    )


def _spellings(text: str) -> Sequence[str]:
    """Return a text as it is, as a string of JSON, and as a string of JSON within another."""
    once = json.dumps(text, ensure_ascii=False)[1:-1]
    return tuple(dict.fromkeys((text, once, json.dumps(once, ensure_ascii=False)[1:-1])))


def _quick(signature: Signature) -> re.Pattern[bytes] | None:
    """Return the expression for a search within a chunk, where `^` would not mean the beginning of a line."""
    is_quick = signature.match is not None and "^" not in signature.match.replace("[^", "")
    return re.compile(signature.match.encode()) if signature.match and is_quick else None


def signatures(failure: Failure) -> Sequence[Signature]:
    """Return the signatures of a failure, those of its Kubernetes events included."""
    events = [Signature(text=reason, match=EVENT.format(reason=re.escape(reason))) for reason in failure.events]
    return [*failure.signatures, *events]
