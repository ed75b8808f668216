"""`rljob explain NAME`: what exit codes, conditions, reasons, phases, alerts and fields mean, and what to do."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from textwrap import indent

from rljob_api.reading import field_lookup
from rljob_cli.manifest.explained_fields import fields, nearest_fields, paths
from rljob_cli.manifest.explanations import Explanation, Kind, everything, explanations, nearest


def explained(word: str | None) -> tuple[Explanation, ...]:
    """Return what the word means; without one, everything but the fields, which docs/manifest.md lists."""
    return everything() if word is None else (*explanations(word), *fields(word))


def unknown(word: str) -> str:
    """Return the message for an unknown word."""
    if reason := field_lookup.needless(word):
        return f"rljob needs no {word!r}: {reason}"
    if reason := field_lookup.lacking(word):
        return reason
    near = nearest_fields(word) if "." in word else nearest(word) or nearest_fields(word)
    hint = f"nearest: {', '.join(near)}" if near else "`rljob explain` lists all, docs/manifest.md the fields"
    return f"{word!r} is not a code, name or field of rljob; {hint}"


def as_text(found: Sequence[Explanation], *, whole: bool) -> str:
    """Return the explanations for people; not whole: a line for each."""
    return "\n\n".join(map(paragraph, found)) if whole else "\n".join(map(line, found))


def paragraph(each: Explanation) -> str:
    do = [] if each.kind is Kind.FIELD else [f"  do:   {each.do or 'nothing'}"]
    return "\n".join([f"{title(each)}: {each.means}", *do, *manifests(each), f"  more: {each.link}"])


def manifests(each: Explanation) -> list[str]:
    """Return the lines with sections of a manifest that are rejected, and those that are accepted."""
    if not each.rejected:
        return []
    return [
        "  rejected:",
        indent(each.rejected, " " * 4).rstrip(),
        "  accepted:",
        indent(each.accepted, " " * 4).rstrip(),
    ]


def line(each: Explanation) -> str:
    return f"{each.kind:<16} {'' if each.code is None else each.code:>3}  {each.name:<28} {each.means}".rstrip()


def title(each: Explanation) -> str:
    return f"{each.kind} {each.name}" if each.code is None else f"{each.kind} {each.code}, {each.name}"


def as_json(found: Sequence[Explanation]) -> str:
    """Return the explanations as a JSON list; `code` is null for a name without an exit code."""
    return json.dumps([asdict(each) for each in found], indent=2, ensure_ascii=False)


def names_like(incomplete: str) -> list[str]:
    """Return the names that begin so, for the completion of a shell."""
    names = {each.name for each in everything()} | set(paths())
    return sorted(name for name in names if name.lower().startswith(incomplete.lower()))
