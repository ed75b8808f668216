"""Describes what exists at or near a missing path."""

import difflib
from pathlib import Path

from rljob_trainer.text import some

MOST_SHOWN = 8


def contents(path: Path) -> str:
    """Return what the directory holds; if it is missing, describe what exists nearest to it."""
    if not path.is_dir():
        return nearest(path)
    names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in path.iterdir())
    if not names:
        return f"{path} is empty"
    return f"{path} holds {some(names, MOST_SHOWN)}"


def nearest(path: Path) -> str:
    """Return the deepest existing directory of a missing path, and entries there with similar names."""
    if path.exists():
        return f"{path} is a file"
    path = path.absolute()
    there = next(parent for parent in path.parents if parent.is_dir())
    wanted = path.relative_to(there).parts[0]
    close = difflib.get_close_matches(wanted, sorted(entry.name for entry in there.iterdir()), n=1, cutoff=0.6)
    if close:
        return f"{there / wanted} does not exist; nearest: {there / close[0]}"
    return f"{there / wanted} does not exist; {contents(there)}"
