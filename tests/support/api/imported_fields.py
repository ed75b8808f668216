"""What an import makes of settings, one line for each field and each note."""

from collections.abc import Mapping
from typing import Any

from rljob_importing.finish import Imported


def difference(after: Imported, before: Imported) -> list[str]:
    """Return `path: value <- origin` and `Kind: argument: why` of what the first import alone makes."""
    old = _lines(before)
    return [line for line in _lines(after) if line not in old]


def _lines(found: Imported) -> list[str]:
    fields = [f"{path}: {_at(found.content['spec'], path)} <- {origin}" for path, origin in found.origins.items()]
    return [*fields, *(f"{note.kind}: {note}" for note in found.notes)]


def _at(spec: Mapping[str, Any], path: str) -> Any:
    here: Any = spec
    for name in path.split("."):
        here = here[name]
    return here
