"""One failure of the catalogue, as its YAML file declares it."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Sentence = Annotated[str, StringConstraints(min_length=10, strip_whitespace=True, pattern=r"[^.]$")]
Text = Annotated[str, StringConstraints(min_length=4)]


class Level(StrEnum):
    """What a failure usually is, when several are found in one log."""

    CAUSE = "Cause"
    """it ends a run by itself"""
    CONSEQUENCE = "Consequence"
    """another failure usually precedes it: a collective that times out because a rank is gone"""
    HINT = "Hint"
    """it makes a run slow or wrong without ending it"""


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Signature(_Declared):
    """What a line of a log looks like when the failure has happened."""

    text: Text
    """characters that the line contains; the search for all of them at once makes a scan fast"""
    match: str | None = None
    """regular expression that the line must match, too"""
    unless: str | None = None
    """regular expression of a line that looks alike and means something else"""
    near: str | None = None
    """regular expression that must match in the lines around it"""
    unless_near: str | None = Field(default=None, alias="unlessNear")
    """regular expression that must not match in the lines around it"""
    unless_handled: bool = Field(default=False, alias="unlessHandled")
    """it proves nothing where the line before its traceback, or one soon after it, says that the program continues"""


class Manifests(_Declared):
    """What leads to a failure and what does not: sections of `spec`."""

    rejected: Text
    message: Text
    """of `rljob validate`"""
    accepted: Text


class Failure(_Declared):
    """A failure, with everything that is known of it."""

    code: Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Za-z0-9]+$")]
    area: str
    title: Sentence
    """what one sees"""
    signatures: tuple[Signature, ...] = ()
    events: tuple[str, ...] = ()
    """reasons of Kubernetes events whose line alone proves the failure"""
    level: Level = Level.CAUSE
    lasting: bool = False
    """it stays in force for any number of lines after it: a checkpoint that was not loaded"""
    passing: bool = False
    """it may end by itself: a wait, or a request that is sent again; it proves nothing where the program continues"""
    over: tuple[str, ...] = ()
    """codes of more general failures that are not reported beside this one"""
    general: bool = False
    """it is not reported beside a failure that says more"""
    cleared: tuple[Text, ...] = ()
    """texts of later lines that prove that it has been overcome"""
    metric: str | None = None
    """metric of a run that shows it"""
    rule: str | None = None
    """field whose rule, or check before the start, refuses it in a manifest"""
    manifest: Manifests | None = None
    """None: more than a manifest must be known"""
    cause: Sentence
    remedy: Annotated[tuple[Sentence, ...], Field(min_length=1)]
    knob: str | None = None
    """field that helps most"""
    source: str
    """address of a public report, file and function that write the message, or row of the coverage table"""
    example: Annotated[str, StringConstraints(min_length=10)] | None = None
    """lines of a log with this failure; None: it leaves none"""
