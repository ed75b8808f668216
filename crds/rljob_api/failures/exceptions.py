"""Says what an exception is that no signature of the catalogue knows, from its class, its words and its frames. Pure.

The wordings of exceptions have no end, but their topics have: a `KeyError` below `load_weights` is a tensor that the
engine does not know, however the line is written. `exceptions.yaml` is the table, and the first line that fits decides.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

FRAME = re.compile(r'File "?([^",\n]+)"?, line \d+,? in ([\w.<>]+)')
MOST_FRAMES: Final = 40
"""frames before an exception that are looked at, the innermost ones"""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Rule(BaseModel):
    """A line of the table."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    error: str | None = None
    """regular expression for `Class: message`; None: any"""
    frames: str | None = None
    """regular expression for one frame, `path in function`; None: the frames do not matter"""
    unless: str | None = None
    """regular expression for `Class: message` of an exception that looks alike and is another failure"""

    @model_validator(mode="after")
    def _looks_at_something(self) -> "Rule":
        if self.error is None and self.frames is None:
            raise ValueError(f"{self.code}: a rule needs `error` or `frames`")
        return self

    def fits(self, error: str, frames: Sequence[str]) -> bool:
        if self.error is not None and not re.search(self.error, error):
            return False
        if self.unless is not None and re.search(self.unless, error):
            return False
        return self.frames is None or any(re.search(self.frames, frame) for frame in frames)


@cache
def rules() -> tuple[Rule, ...]:
    """Return the table in its order."""
    text = files("rljob_api.failures").joinpath("exceptions.yaml").read_text("utf-8")
    return tuple(Rule.model_validate(each) for each in yaml.load(text, Loader=_Loader))


def code_of(error: str, frames: Sequence[str]) -> str | None:
    """Return the code of the failure that an exception is; None: its class, words and frames name no topic."""
    return next((rule.code for rule in rules() if rule.fits(error, frames)), None)


def frames(text: str) -> tuple[str, ...]:
    """Return the frames of the last traceback in a text, as `path in function`, the innermost last."""
    last = text.rpartition("Traceback (most recent call last)")[2]
    return tuple(f"{path} in {name}" for path, name in FRAME.findall(last)[-MOST_FRAMES:])
