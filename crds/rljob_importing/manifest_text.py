"""Writes an imported RLJob as YAML: each line with its origin, and at the end what has no field."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.reading import field_lookup
from rljob_api.reading.document import SCALARS
from rljob_importing.draft import Note, NoteKind
from rljob_importing.finish import Imported

PLAIN = re.compile(r"[A-Za-z/][\w./-]*(:[\w./-]+)*")
"""texts that need no quotes, unless they are another type's words"""
OTHER_TYPES = re.compile("|".join(f"(?:{pattern})" for _, pattern, _ in SCALARS))
UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""what JSON leaves as it is and YAML reads as the end of a line, or refuses"""
HEADINGS = {
    NoteKind.UNKNOWN: "Values that are not known without running the script; check them:",
    NoteKind.CHECK: "Carried over, but it works differently:",
    NoteKind.LOST: "No counterpart:",
    NoteKind.UNLISTED: "Unknown names:",
    NoteKind.NEEDLESS: "Not needed:",
}
"""in the order of their importance"""


def text(imported: Imported, source: str) -> str:
    """Return the manifest with comments. `source` names what it was imported from."""
    lines = [f"# Imported from {' '.join(source.split())}. Each field has a comment with its origin."]
    lines += document(imported.content, imported.origins)
    if imported.problems:
        lines += ["#", "# Not valid yet:"]
        lines += [f"#   {_with_origin(imported, problem)}" for problem in imported.problems]
    for kind, heading in HEADINGS.items():
        found = [note for note in imported.notes if note.kind is kind]
        lines += ["#", f"# {heading}"] if found else []
        lines += [f"#   {_one_line(note)}" for note in found]
    return "\n".join(lines) + "\n"


def document(content: Mapping[str, Any], comments: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a manifest. Comments are by the path of a field below `spec`."""
    yield from _fields({key: content[key] for key in ("apiVersion", "kind", "metadata")}, "", {})
    yield "spec:"
    yield from _fields(_ordered(content["spec"]), "  ", comments)


def _with_origin(imported: Imported, problem: Any) -> str:
    found = imported.origin_of(problem)
    return " ".join(f"{problem}{f' (from {found})' if found else ''}".split())


def _one_line(note: Note) -> str:
    return " ".join(str(note).split())


def _ordered(spec: Mapping[str, Any], path: tuple[str, ...] = ("spec",)) -> dict[str, Any]:
    """Return a spec with its fields in the order of the reference."""
    places = {each: place for place, each in enumerate(field_lookup.entries())}
    last = len(places)
    return {
        name: _ordered(value, (*path, name)) if isinstance(value, dict) else value
        for name, value in sorted(spec.items(), key=lambda item: places.get((*path, item[0]), last))
    }


def _fields(values: Mapping[str, Any], indent: str, origins: Mapping[str, str], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        here = f"{path}{name}"
        comment = f"  # {' '.join(origins[here].split())}" if here in origins else ""
        if isinstance(value, dict) and value:
            yield f"{indent}{scalar(name)}:{comment}"
            yield from _fields(value, f"{indent}  ", origins, f"{here}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{scalar(name)}:{comment}"
            for item in value:
                first, *others = _fields(item, "", {})
                yield f"{indent}- {first}"
                yield from (f"{indent}  {other}" for other in others)
        else:
            yield f"{indent}{scalar(name)}: {scalar(value)}{comment}"


def scalar(value: object) -> str:
    """Return a value as YAML writes it on one line."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and not OTHER_TYPES.fullmatch(value):
        return value
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
