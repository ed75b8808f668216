"""What an extra of the wheel needs in the end, by the metadata of the packages that are installed here."""

import importlib.metadata
import tomllib
from collections.abc import Iterable
from pathlib import Path
from zipfile import Path as InZip

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.cli.empty_environment import ROOT

LOCKED_FOR = {"python_version": "3.11", "python_full_version": "3.11.0"}
"""Python of the locks, see COMPILE in the Makefile"""


def needs(wheel: Path, extra: str) -> dict[str, list[Requirement]]:
    """Return each package that `rljob[extra]` needs in the end, with all that is asked of it."""
    (metadata,) = [each for each in InZip(wheel).iterdir() if each.name.endswith(".dist-info")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    left_out = {Requirement(each).name for each in project["tool"]["uv"]["override-dependencies"]}
    found: dict[str, list[Requirement]] = {}
    todo = [("rljob", frozenset({extra}))]
    seen = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        own = name == "rljob"
        package = importlib.metadata.PathDistribution(metadata) if own else importlib.metadata.distribution(name)
        for wanted in applying(package.requires or (), extras or {""}):
            needed = canonicalize_name(wanted.name)
            if needed not in left_out:
                found.setdefault(needed, []).append(wanted)
                todo.append((needed, frozenset(wanted.extras)))
    found.pop("rljob", None)
    return found


def applying(lines: Iterable[str], extras: Iterable[str]) -> Iterable[Requirement]:
    """Return the requirements whose markers hold with one of the extras."""
    for line in lines:
        wanted = Requirement(line)
        if wanted.marker is None or any(wanted.marker.evaluate({**LOCKED_FOR, "extra": each}) for each in extras):
            yield wanted
