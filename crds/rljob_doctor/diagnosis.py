"""Ranks what was found in the logs of one run: the first and most specific failure before its consequences. Pure."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from rljob_doctor.catalogue import catalogue
from rljob_doctor.entry import Failure, Level
from rljob_doctor.occurrences import UNKNOWN, Occurrence, Scanned

EPISODE = 3000
"""lines without a cause that separate a failure that the run survived from the one that ended it"""
MOST_EVIDENCE = 3
"""lines that are shown of a failure"""
LEVELS = (Level.CAUSE, Level.CONSEQUENCE, Level.HINT)
WRAPPER = re.compile(
    r"RayTaskError|RAY_IGNORE_UNHANDLED_ERRORS|error raised in its creation task|This exception is raised"
)
"""a line that passes on an exception of another process, whose own message is in another line"""


@dataclass(frozen=True, slots=True)
class DiagnosedFailure:
    """A failure that was recognised."""

    failure: Failure
    evidence: tuple[Occurrence, ...]
    """the first lines of the episode that ended the run"""
    count: int
    is_earlier: bool
    """the run continued for long after it"""
    is_likely: bool = False
    """no signature knows the line: words, frames or likeness say what it is about, and no more"""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known of why a run failed."""

    findings: tuple[DiagnosedFailure, ...]
    """most probable cause first"""
    overcome: tuple[str, ...] = ()
    """codes of failures in a run that succeeded"""
    last_exception: Occurrence | None = None
    """where to look if there are no findings"""
    exception: Occurrence | None = None
    """the deepest exception of the first traceback, where the first finding is only a consequence"""


def diagnose(logs: Sequence[Scanned]) -> Diagnosis:
    """Return the diagnosis of logs that belong to the same attempt of a run."""
    occurrences = _by_failure(logs)
    if any(log.succeeded_at >= 0 for log in logs):
        ends = {log.name: log.succeeded_at for log in logs}
        later = [
            (failure, [each for each in found if 0 <= ends[each.log] < each.start]) for failure, found in occurrences
        ]
        if not any(found for _, found in later):
            return Diagnosis((), overcome=tuple(failure.code for failure, _ in occurrences))
        occurrences = [(failure, found) for failure, found in later if found]
    if _goes_on(occurrences, logs):
        occurrences = [(failure, found) for failure, found in occurrences if failure.level is Level.HINT]
    hidden = _hidden([failure for failure, _ in occurrences]) | _said_better(occurrences)
    shown = [(failure, found) for failure, found in occurrences if failure.code not in hidden]
    begins = _episodes(shown, [log.name for log in logs])
    counts = {failure.code: sum(log.counts.get(failure.code, 0) for log in logs) for failure, _ in shown}
    findings = [_finding(failure, found, counts[failure.code], begins, logs) for failure, found in shown]
    findings = _with_end(findings, occurrences, logs)
    order = {log.name: index for index, log in enumerate(logs)}
    exceptions = [log.last_exception for log in logs if log.last_exception]
    ranked = tuple(sorted(findings, key=lambda each: _rank(each, order)))
    return Diagnosis(
        ranked,
        last_exception=exceptions[0] if exceptions else None,
        exception=_behind(ranked, occurrences),
    )


def _with_end(
    findings: list[DiagnosedFailure],
    occurrences: Sequence[tuple[Failure, Sequence[Occurrence]]],
    logs: Sequence[Scanned],
) -> list[DiagnosedFailure]:
    """Return findings with what the ends of logs say, where none is a cause: hints, consequences, any exception."""
    if any(each.failure.level is not Level.HINT and each.failure.code != UNKNOWN for each in findings):
        has_cause = any(each.failure.level is Level.CAUSE for each in findings)
        return findings if has_cause else findings + _led_to(findings, logs)
    known = {(each.log, each.line) for _, found in occurrences for each in found}
    known |= {(each.log, each.line) for log in logs for each in log.settled}
    said = _unexplained(_last_lines([(log, log.last_errors) for log in logs]), known)
    if any(each.failure.code == UNKNOWN for each in findings):
        return [each for each in findings if not said or each.failure.code != UNKNOWN] + said
    likely = _last_lines([(log, log.last_likely) for log in logs])
    return findings + (said or _unexplained(_last_words(logs), known) or _unexplained(likely, known))


def _led_to(findings: Sequence[DiagnosedFailure], logs: Sequence[Scanned]) -> list[DiagnosedFailure]:
    """Return what lines suggest that stand before the first consequence of their log, such as the death of an actor."""
    begins: dict[str, int] = {}
    for seen in (seen for each in findings if each.failure.level is Level.CONSEQUENCE for seen in each.evidence):
        begins[seen.log] = min(seen.start, begins.get(seen.log, seen.start))
    causes = {
        code: [each for each in found if each.start < begins.get(each.log, 0)]
        for code, found in _last_lines([(log, log.last_errors) for log in logs]).items()
        if catalogue()[code].level is Level.CAUSE and not catalogue()[code].general
    }
    return _unexplained(causes, set())


def _last_words(logs: Sequence[Scanned]) -> dict[str, list[Occurrence]]:
    """Return the exceptions with which logs end, though no traceback stands before them."""
    return {UNKNOWN: [log.last_words for log in logs if log.last_words]}


def _last_lines(lines: Sequence[tuple[Scanned, Mapping[str, Sequence[Occurrence]]]]) -> dict[str, list[Occurrence]]:
    """Return what lines at the end suggest that look like errors, by code: none after which the program continued."""
    codes = dict.fromkeys(code for log, found in lines for code in found if log.succeeded_at < 0)
    goes_on = {log.name: max(log.progress_at, log.well_at) for log, _ in lines}
    return {
        code: [each for _, found in lines for each in found.get(code, ()) if each.start > goes_on[each.log]]
        for code in codes
    }


def _unexplained(seen: Mapping[str, Sequence[Occurrence]], known: Set[tuple[str, int]]) -> list[DiagnosedFailure]:
    """Return findings of lines at the end of logs that no hint explains; `known` are the hints' logs and lines."""
    left = {code: [each for each in lines if (each.log, each.line) not in known] for code, lines in seen.items()}
    return [
        DiagnosedFailure(catalogue()[code], tuple(lines[:MOST_EVIDENCE]), len(lines), False, is_likely=code != UNKNOWN)
        for code, lines in left.items()
        if lines
    ]


def _behind(
    ranked: Sequence[DiagnosedFailure], occurrences: Sequence[tuple[Failure, Sequence[Occurrence]]]
) -> Occurrence | None:
    """Return the exception that a consequence followed, if nothing else says what it followed."""
    if not ranked or ranked[0].failure.level is not Level.CONSEQUENCE or ranked[0].failure.code == UNKNOWN:
        return None
    found = [each for failure, each_found in occurrences if failure.code == UNKNOWN for each in each_found]
    return next((each for each in found if not WRAPPER.search(each.text)), None)


def _hidden(failures: Sequence[Failure]) -> set[str]:
    """Return the codes of failures that are not reported, because a more specific one was found."""
    hidden = {code for failure in failures for code in failure.over}
    shown = [failure for failure in failures if failure.code not in hidden and failure.level is not Level.HINT]
    hidden.update(
        failure.code for failure in shown if failure.general and any(_says_more(each, failure) for each in shown)
    )
    return hidden


def _goes_on(occurrences: Sequence[tuple[Failure, Sequence[Occurrence]]], logs: Sequence[Scanned]) -> bool:
    """Return whether training has done steps after all that was found, which may have ended by itself."""
    steps = {log.name: log.progress_at for log in logs}
    return all(
        failure.level is Level.HINT or (failure.passing and all(each.start < steps[each.log] for each in found))
        for failure, found in occurrences
    )


def _said_better(occurrences: Sequence[tuple[Failure, Sequence[Occurrence]]]) -> set[str]:
    """Return the codes of general failures whose every line has another one, too: a status 503, and who answers it."""
    better = {
        (each.log, each.line)
        for failure, found in occurrences
        if not failure.general and failure.level is not Level.HINT
        for each in found
    }
    return {
        failure.code
        for failure, found in occurrences
        if failure.general and all((each.log, each.line) in better for each in found)
    }


def _says_more(other: Failure, general: Failure) -> bool:
    if general.level is Level.CAUSE:
        return other.level is Level.CAUSE and not other.general
    return other.level is Level.CAUSE or not other.general


def _by_failure(logs: Sequence[Scanned]) -> list[tuple[Failure, list[Occurrence]]]:
    codes = dict.fromkeys(code for log in logs for code in log.found)
    found = [(catalogue()[code], [each for log in logs for each in log.found.get(code, ())]) for code in codes]
    said = {
        (each.log, each.start)
        for failure, lines in found
        if failure.level is not Level.HINT and failure.code != UNKNOWN
        for each in lines
    }
    ends = {(log.name, log.last_words.start) for log in logs if log.last_words} - said
    found = [(_as_end(failure) if _is_end(failure, each, ends) else failure, each) for failure, each in found]
    return [*found, *_suggested(logs, {failure.code for failure, _ in found})]


def _is_end(failure: Failure, found: Sequence[Occurrence], ends: Set[tuple[str, int]]) -> bool:
    """Return whether a log ends with the exception of what usually ends no run: a tracker that was not reached."""
    return failure.level is Level.HINT and any((each.log, each.start) in ends for each in found)


def _as_end(hint: Failure) -> Failure:
    return hint.model_copy(update={"level": Level.CAUSE})


def _suggested(logs: Sequence[Scanned], known: set[str]) -> list[tuple[Failure, list[Occurrence]]]:
    """Return what exceptions suggest that no signature knows: it says less than the signature of any cause."""
    codes = dict.fromkeys(code for log in logs for code in log.inferred if code not in known)
    return [
        (
            catalogue()[code].model_copy(update={"general": True, "over": (UNKNOWN,)}),
            [each for log in logs for each in log.inferred.get(code, ())],
        )
        for code in codes
    ]


def _episodes(shown: Sequence[tuple[Failure, Sequence[Occurrence]]], names: Sequence[str]) -> dict[str, int]:
    """Return for each log the line at which the chain of causes begins that leads to its last one."""
    begins = {}
    for name in names:
        causes = [
            each.line for failure, found in shown if failure.level is Level.CAUSE for each in found if each.log == name
        ]
        causes.sort(reverse=True)
        begin = causes[0] if causes else 0
        for line in causes:
            if begin - line > EPISODE:
                break
            begin = line
        begins[name] = begin
    return begins


def _finding(
    failure: Failure, found: Sequence[Occurrence], count: int, begins: dict[str, int], logs: Sequence[Scanned]
) -> DiagnosedFailure:
    recent = [each for each in found if failure.lasting or each.line >= begins[each.log]]
    ordered = sorted(recent or found, key=lambda each: (bool(WRAPPER.search(each.text)), each.time))
    is_likely = not any(failure.code in log.found for log in logs)
    return DiagnosedFailure(failure, tuple(ordered[:MOST_EVIDENCE]), count, is_earlier=not recent, is_likely=is_likely)


def _rank(finding: DiagnosedFailure, order: dict[str, int]) -> tuple[object, ...]:
    """Return the key to sort by: causes of the last episode in their order, then consequences, then hints."""
    first = finding.evidence[0]
    when = first.time or "~" if len(order) > 1 else ""
    return (finding.is_earlier, LEVELS.index(finding.failure.level), when, order[first.log], first.line, first.start)
