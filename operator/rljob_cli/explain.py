"""`rljob explain CODE`: what exit codes, conditions, reasons, phases and alerts mean, and what to do."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rljob_api.generated.explanations import Explanation, everything, explanations, nearest


def explained(word: str | None) -> tuple[Explanation, ...]:
    """Return what the word means; without one, everything that there is."""
    return everything() if word is None else explanations(word)


def unknown(word: str) -> str:
    """Return the message for an unknown word."""
    near = nearest(word)
    hint = f"nearest: {', '.join(near)}" if near else "`rljob explain` lists all"
    return f"{word!r} is not a code or name of rljob; {hint}"


def as_text(found: Sequence[Explanation], *, whole: bool) -> str:
    """Return the explanations for people; not whole: a line for each."""
    return "\n\n".join(map(paragraph, found)) if whole else "\n".join(map(line, found))


def paragraph(each: Explanation) -> str:
    return "\n".join(
        [
            f"{title(each)}: {each.means}",
            f"  do:   {each.do or 'nothing'}",
            f"  more: {each.link}",
        ]
    )


def line(each: Explanation) -> str:
    return f"{each.kind:<16} {'' if each.code is None else each.code:>3}  {each.name:<28} {each.means}".rstrip()


def title(each: Explanation) -> str:
    return f"{each.kind} {each.name}" if each.code is None else f"{each.kind} {each.code}, {each.name}"


def as_json(found: Sequence[Explanation]) -> str:
    """Return the explanations as a JSON list; `code` is null for what is no exit code."""
    return json.dumps([asdict(each) for each in found], indent=2, ensure_ascii=False)


def names_like(incomplete: str) -> list[str]:
    """Return the names that begin so, for the completion of a shell."""
    return sorted({each.name for each in everything() if each.name.lower().startswith(incomplete.lower())})
