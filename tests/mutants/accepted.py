"""Reads the list of accepted survivors. An entry gives the lines that the mutant changes, and the reason.

The lines identify a mutant, because its number changes with every edit of the function.
"""

from dataclasses import dataclass
from pathlib import Path

import yaml

ACCEPTED = Path("tests/mutants/accepted.yaml")


@dataclass(frozen=True)
class Accepted:
    module: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    reason: str


def read(path: Path) -> list[Accepted]:
    """Raises ValueError for an entry without a reason."""
    entries = []
    for module, listed in (yaml.safe_load(path.read_text()) or {}).items():
        for entry in listed:
            if not entry.get("reason"):
                raise ValueError(f"{path}: {module}: {entry} has no reason")
            entries.append(Accepted(module, _lines(entry["from"]), _lines(entry["to"]), entry["reason"]))
    return entries


def changed_lines(diff: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines that a unified diff removes and adds, without indentation."""
    body = diff.splitlines()[2:]
    removed = tuple(line[1:].strip() for line in body if line.startswith("-"))
    added = tuple(line[1:].strip() for line in body if line.startswith("+"))
    return removed, added


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())
