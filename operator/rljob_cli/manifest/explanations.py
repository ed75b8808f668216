"""What every code and name that users meet means, and what to do: `explanations.yaml` and the catalogue of failures,
for `rljob explain`. `explained_fields` has the fields of a manifest.

A name may mean several things: `Stalled` is a condition, and the name of an exit code. Tests hold the list against the
enumerations of operator and trainer, the chart's alerts, and the pages that it links to.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

import yaml

from rljob_api.exits import Exit, camel_case

SHORTEST = 3
"""part of a name that is looked for: `oom`"""


class Kind(StrEnum):
    """What sort of name it is."""

    EXIT = "exit code"
    PHASE = "phase"
    CONDITION = "condition"
    REASON = "reason"
    ACTION = "recovery action"
    ENGINE = "engine state"
    FAILURE = "engine failure"
    FINDING = "finding"
    ALERT = "alert"
    LOG = "failure in a log"
    CONTAINER = "end of a container"
    """as Kubernetes names it, or the shell's number for a signal"""
    WAITING = "waiting pod"
    """as Kubernetes names what it waits for"""
    FIELD = "field"
    """of a manifest; see `explained_fields`"""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one name means."""

    name: str
    kind: Kind
    means: str
    do: str
    """what helps; empty: nothing has to be done"""
    link: str
    """page of the docs, with its anchor"""
    code: int | None = None
    """the number of an exit code, or that of a container that a signal has ended"""
    rejected: str = ""
    """sections of `spec` that lead to it and are rejected; empty: more than a manifest must be known"""
    accepted: str = ""
    """the same, corrected"""


@cache
def everything() -> tuple[Explanation, ...]:
    """Return all explanations, by kind."""
    from rljob_doctor.catalogue import catalogue
    from rljob_doctor.page import address

    content = yaml.safe_load(files("rljob_cli.manifest").joinpath("explanations.yaml").read_text("utf-8"))
    codes = {camel_case(code): code for code in Exit}
    written = tuple(
        Explanation(
            name=name,
            kind=Kind(kind),
            means=codes[name].meaning if kind == Kind.EXIT else text["means"],
            do=text.get("do", ""),
            link=f"docs/{text['link']}",
            code=codes[name].value if kind == Kind.EXIT else text.get("code"),
        )
        for kind, names in content.items()
        for name, text in names.items()
    )
    return written + tuple(
        Explanation(
            name=failure.code,
            kind=Kind.LOG,
            means=f"{failure.title}. {failure.cause}",
            do="; ".join(failure.remedy),
            link=f"docs/{address(failure)}",
            rejected=failure.manifest.rejected if failure.manifest else "",
            accepted=failure.manifest.accepted if failure.manifest else "",
        )
        for failure in catalogue().values()
    )


def explanations(word: str) -> tuple[Explanation, ...]:
    """Return all that a name, or the number of an exit code, means; capitals, `_` and `-` do not count."""
    return tuple(each for each in everything() if plain(word) in (plain(each.name), str(each.code)))


def nearest(word: str) -> tuple[str, ...]:
    """Return up to three names that are most like a word, best first."""
    return nearest_of(word, {plain(each.name): each.name for each in everything()})


def nearest_of(word: str, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return up to three of the names, by their plain spelling, that are most like a word."""
    close = difflib.get_close_matches(plain(word), names, n=3, cutoff=0.6)
    within = [name for name in names if len(plain(word)) >= SHORTEST and plain(word) in name and name not in close]
    return tuple(names[name] for name in (*close, *within))[:3]


def plain(word: str) -> str:
    """Return a name as it is compared: without capitals, `_`, `-`, and the `spec` before a field."""
    return word.strip().lower().removeprefix("spec.").replace("_", "").replace("-", "")
