"""Shows a diagnosis: as text for people, as JSON for programs. Pure."""

import json
from collections.abc import Sequence

from rljob_doctor.diagnosis import DiagnosedFailure, Diagnosis
from rljob_doctor.entry import Level
from rljob_doctor.occurrences import Occurrence, Scanned
from rljob_doctor.page import address

MOST_SHOWN = 3
"""failures that are shown in full"""
WIDTH = 220
"""characters of a line of evidence"""
LATER = {Level.CAUSE: "also", Level.CONSEQUENCE: "consequence", Level.HINT: "hint"}


def as_text(diagnosis: Diagnosis, logs: Sequence[Scanned], notes: Sequence[str] = ()) -> str:
    """Return the diagnosis for people: the causes in full, the rest one line each."""
    shown = number_shown(diagnosis.findings)
    parts = ["\n".join(f"note: {note}" for note in notes)] if notes else []
    parts += [paragraph(number, each) for number, each in enumerate(diagnosis.findings[:shown], start=1)]
    if followed := diagnosis.exception:
        parts.append(f"it followed this exception:\n  {where(followed)}  {followed.text[:WIDTH]}")
    if rest := diagnosis.findings[shown:]:
        parts.append("\n".join(line(each) for each in rest))
    if not diagnosis.findings:
        parts.append(nothing(diagnosis, logs))
    return "\n\n".join(parts)


def number_shown(findings: Sequence[DiagnosedFailure]) -> int:
    """Return how many findings are shown in full: the causes of the end, or else the first finding."""
    causes = [each for each in findings if each.failure.level is Level.CAUSE and not each.is_earlier]
    return min(len(causes), MOST_SHOWN) or min(len(findings), 1)


def paragraph(number: int, finding: DiagnosedFailure) -> str:
    failure = finding.failure
    seen = [f"   seen:  {where(each)}  {each.text[:WIDTH]}" for each in finding.evidence]
    if finding.count > len(finding.evidence):
        seen.append(f"          {finding.count} lines in all")
    if finding.is_likely:
        return "\n".join([f"{number}. not recognised; the words are those of: {failure.area}", *seen])
    lines = [f"{number}. {failure.code}: {failure.title}", f"   cause: {failure.cause}", *seen]
    lines += [f"   do:    {each}" for each in failure.remedy]
    if failure.knob:
        lines.append(f"   field: {failure.knob}")
    return "\n".join([*lines, f"   more:  {link(finding)}"])


def line(finding: DiagnosedFailure) -> str:
    kind = "earlier" if finding.is_earlier else LATER[finding.failure.level]
    if finding.is_likely:
        return f"{kind}: not recognised; {finding.failure.area} ({where(finding.evidence[0])})"
    return f"{kind}: {finding.failure.code}: {finding.failure.title} ({where(finding.evidence[0])})"


def nothing(diagnosis: Diagnosis, logs: Sequence[Scanned]) -> str:
    read = f"{sum(log.lines for log in logs)} lines of {len(logs)} log{'' if len(logs) == 1 else 's'}"
    if diagnosis.overcome:
        return f"no failure in {read}: the run succeeded. It overcame {', '.join(diagnosis.overcome)}"
    if found := diagnosis.last_exception:
        return f"no known failure in {read}. The last exception is\n  {where(found)}  {found.text[:WIDTH]}"
    return f"no known failure in {read}"


def as_json(diagnosis: Diagnosis, logs: Sequence[Scanned], notes: Sequence[str] = ()) -> str:
    """Return the diagnosis as a JSON object; `failures` has the most probable cause first."""
    value = {
        "failures": [value_of(each) for each in diagnosis.findings],
        "overcome": list(diagnosis.overcome),
        "lastException": evidence_value(diagnosis.last_exception) if diagnosis.last_exception else None,
        "followedException": evidence_value(diagnosis.exception) if diagnosis.exception else None,
        "logs": [{"name": log.name, "lines": log.lines, "bytes": log.size} for log in logs],
        "notes": list(notes),
    }
    return json.dumps(value, indent=2, ensure_ascii=False)


def value_of(finding: DiagnosedFailure) -> dict[str, object]:
    failure = finding.failure
    evidence = {"count": finding.count, "evidence": [evidence_value(each) for each in finding.evidence]}
    if finding.is_likely:
        return {"code": None, "area": failure.area, "earlier": finding.is_earlier, **evidence}
    return {
        "code": failure.code,
        "title": failure.title,
        "area": failure.area,
        "level": str(failure.level),
        "earlier": finding.is_earlier,
        "cause": failure.cause,
        "remedy": list(failure.remedy),
        "field": failure.knob,
        "metric": failure.metric,
        "source": failure.source,
        "link": link(finding),
        **evidence,
    }


def evidence_value(found: Occurrence) -> dict[str, object]:
    return {"log": found.log, "line": found.line, "time": found.time or None, "text": found.text}


def where(found: Occurrence) -> str:
    return f"{found.log}:{found.line}"


def link(finding: DiagnosedFailure) -> str:
    return f"docs/{address(finding.failure)}"
