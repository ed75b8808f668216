"""The catalogue: all failures, by code."""

import difflib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml

from rljob_doctor.entry import Failure

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def catalogue() -> Mapping[str, Failure]:
    """Return all failures in the order of their files. Raises ValueError for a code that is declared twice."""
    found: dict[str, Failure] = {}
    folder = files("rljob_doctor").joinpath("areas")
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        area, entries = _area(file.read_text("utf-8"))
        for code, fields in entries.items():
            if code in found:
                raise ValueError(f"{file.name}: {code} is declared in two files; codes are unique")
            found[code] = Failure(code=code, area=area, **fields)
    return MappingProxyType(found)


def nearest(code: str) -> tuple[str, ...]:
    """Return up to three codes that are most like a word, best first."""
    return tuple(difflib.get_close_matches(code, catalogue(), n=3, cutoff=0.5))


def parsed(text: str) -> Any:
    """Return what a YAML file of this package says, read by the fastest parser that is installed."""
    return yaml.load(text, Loader=_Loader)


def _area(text: str) -> tuple[str, dict[str, dict[str, object]]]:
    content = parsed(text)
    return content["area"], content["failures"]
