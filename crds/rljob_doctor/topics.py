"""Says what an error is that no signature of the catalogue knows, from its class, its words and its frames. Pure.

The wordings of errors have no end, but their topics have: a `KeyError` below `load_weights` is a tensor that the engine
does not know, however the line is written. `exceptions.yaml` is the table for exceptions of Python, `lines.yaml` for
other lines that look like errors. In each the first rule that fits decides.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, model_validator

from rljob_doctor.catalogue import parsed
from rljob_doctor.log_text import TRACEBACK

FRAME = re.compile(r'File "?([^",\n]+?)"?(?:, line |:)\d+,? in ([\w.<>]+)')
"""a frame as Python, a stack dump or a notebook writes it"""
PLACES = (
    (re.compile(r"^.*/(?:site|dist)-packages/"), "/site-packages/"),
    (re.compile(r"^.*/lib(?:64)?/python\d[\d.]*/"), "/lib/python/"),
    (re.compile(r"^.*/_ray_pkg_\w+/"), "/"),
    (re.compile(r"^/(?:home|Users)/[^/]+/"), "/"),
    (re.compile(r"^(?:/(?:data|mnt|cpfs|nfs|share|root|workspace|scratch|tmp)\w*)+/"), "/"),
)
"""where an installation, a job or a user keeps files: `/data/envs/vllm/lib` says nothing of what was called"""
MOST_FRAMES: Final = 40
"""frames before an exception that are looked at, the innermost ones"""


class ExceptionRule(BaseModel):
    """A line of the table of exceptions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    error: str | None = None
    """regular expression for `Class: message`; None: any"""
    frames: str | None = None
    """regular expression for one frame, `path in function`; None: the frames do not matter"""
    raised: str | None = None
    """regular expression for the innermost frame, whose code raised the exception; None: it does not matter"""
    unless: str | None = None
    """regular expression for `Class: message` of an exception that looks alike and is another failure"""

    @model_validator(mode="after")
    def _looks_at_something(self) -> "ExceptionRule":
        if self.error is None and self.frames is None and self.raised is None:
            raise ValueError(f"{self.code}: a rule needs `error`, `frames` or `raised`")
        return self

    def fits(self, error: str, frames: Sequence[str]) -> bool:
        if self.error is not None and not re.search(self.error, error):
            return False
        if self.unless is not None and re.search(self.unless, error):
            return False
        # A traceback that is cut off has no exception yet, so its innermost frame raised nothing.
        if self.raised is not None and not (error and frames and re.search(self.raised, frames[-1])):
            return False
        return self.frames is None or any(re.search(self.frames, frame) for frame in frames)


class LineRule(BaseModel):
    """A line of the table of other lines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    line: str
    """regular expression for the line"""


@cache
def exception_rules() -> tuple[ExceptionRule, ...]:
    """Return the table of exceptions in its order."""
    return tuple(ExceptionRule.model_validate(each) for each in _table("exceptions.yaml"))


@cache
def line_rules() -> tuple[LineRule, ...]:
    """Return the table of other lines in its order."""
    return tuple(LineRule.model_validate(each) for each in _table("lines.yaml"))


def code_of_exception(error: str, frames: Sequence[str]) -> str | None:
    """Return the code of the failure that an exception is; None: its class, words and frames name no topic."""
    rule = rule_of_exception(error, frames)
    return rule.code if rule else None


def code_of_line(line: str) -> str | None:
    """Return the code of the failure that a line is about, which looks like an error; None: it names no topic."""
    rule = rule_of_line(line)
    return rule.code if rule else None


def rule_of_exception(error: str, frames: Sequence[str]) -> ExceptionRule | None:
    """Return the rule that decides what an exception is: the first that fits."""
    return next((rule for rule in exception_rules() if rule.fits(error, frames)), None)


def rule_of_line(line: str) -> LineRule | None:
    """Return the rule that decides what a line is about: the first that fits."""
    return next((rule for rule in line_rules() if re.search(rule.line, line)), None)


def frames(text: str) -> tuple[str, ...]:
    """Return the frames of the last traceback in a text, as `path in function`, the innermost last."""
    last = text.rpartition(TRACEBACK)[2]
    return tuple(f"{_without_place(path)} in {name}" for path, name in FRAME.findall(last)[-MOST_FRAMES:])


def _without_place(path: str) -> str:
    """Return a path without the directory below which an installation or a user keeps all files."""
    for place, instead in PLACES:
        if place.search(path):
            return place.sub(instead, path)
    return path


def _table(name: str) -> Any:
    return parsed(files("rljob_doctor").joinpath(name).read_text("utf-8"))
