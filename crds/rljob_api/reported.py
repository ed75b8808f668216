"""Reads the status of a driver, which belongs to a tenant and may be of another version: leniently, and within limits.

    bytes ─► nothing odd in them ─► Status ─────────────────────────────► within the limits of lists ─► Status
       └───► odd, or no Status ──► part by part, without those that do not fit ─┘

What this version does not know is left out: a field, or an entry of a list. Infinity is not a number.
Where a needed field is wrong, the part that needs it is left out, in the end the whole status.
"""

import json
import math
import re
import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from rljob_api.control import MOST_CURVE_POINTS, EngineStatus, Status
from rljob_api.foreign_text import printable
from rljob_api.sections import MOST_EVALUATION_SETS

MOST_VALUES = 150_000
"""in a status; a driver of 10,000 engines, the most of a manifest, reports 100,000"""
MOST_ENTRIES = 1_000
"""of a list in an odd status; the newest"""
MOST_ENGINES = 10_000
MOST_INCIDENTS = 100
MOST_DECISIONS = 200
MOST_FINDINGS = 32
LONGEST_TEXT = 4_000
"""of a text in an odd status [characters]"""
LARGEST = 253_402_300_799.0
"""31 December 9999 [unix s]; no count, duration or time of a run is larger"""
ODD = re.compile(
    rb"NaN|Infinity"  # no JSON, and no numbers
    rb"|(?<![\d.])\d{13}|\d[eE]\+?\d\d"  # numbers beyond LARGEST
    rb"|\\[bfru]|[\x7f-\xff]"  # characters that `printable` might change
)
NEEDED = {"revision", "attempt", "state"}
"""an answer without these is not a driver's"""
NOTHING: Any = object()
"""stands for a value that does not fit"""


class ReportError(ValueError):
    """What a driver answered is not a status."""


def read_status(content: bytes) -> Status:
    """Return the status that a driver has sent; raise ReportError."""
    if content.count(b",") + content.count(b"[") + content.count(b"{") > MOST_VALUES:
        raise ReportError(f"more than {MOST_VALUES:,} values")
    if ODD.search(content) is None:
        try:
            return _within_limits(Status.model_validate_json(content))
        except ValidationError:
            pass  # not as this version has it: part by part
    return _within_limits(_part_by_part(content))


def _part_by_part(content: bytes) -> Status:
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"no JSON: {type(error).__name__}") from error
    status = _part(Status, raw)
    if status is NOTHING:
        raise ReportError("what a status needs is missing or wrong")
    assert isinstance(status, Status)
    return status


def _within_limits(status: Status) -> Status:
    """Return the status with no list longer than what rljob's driver reports, and no engine twice."""
    if missing := NEEDED - status.model_fields_set:
        raise ReportError(f"it lacks {' and '.join(sorted(missing))}")
    progress = status.progress
    sets = dict(list(progress.evaluation_sets.items())[:MOST_EVALUATION_SETS])
    return status.model_copy(
        update={
            "engines": _each_once(status.engines[:MOST_ENGINES]),
            "incidents": status.incidents[-MOST_INCIDENTS:],
            "decisions": status.decisions[-MOST_DECISIONS:],
            "findings": status.findings[:MOST_FINDINGS],
            "progress": progress.model_copy(
                update={"curve": progress.curve[-MOST_CURVE_POINTS:], "evaluation_sets": sets}
            ),
        }
    )


def _each_once(engines: tuple[EngineStatus, ...]) -> tuple[EngineStatus, ...]:
    """Return the engines without those whose name an earlier one has: the status of an RLJob lists them by name."""
    by_name: dict[str, EngineStatus] = {}
    for each in engines:
        by_name.setdefault(each.name, each)
    return tuple(by_name.values())


def _part(model: type[BaseModel], raw: Any) -> Any:
    """Return a part of the status, with the fields of `raw` that fit; NOTHING: one that it needs does not."""
    if not isinstance(raw, dict):
        return NOTHING
    given = {}
    for name, field in model.model_fields.items():
        value = _value(field.annotation, raw.get(field.alias or name, NOTHING))
        if value is not NOTHING:
            given[name] = value
    try:
        return model.model_validate(given)
    except ValidationError as error:
        wrong = {each["loc"][0] for each in error.errors(include_url=False, include_context=False, include_input=False)}
    fits = {name: value for name, value in given.items() if (model.model_fields[name].alias or name) not in wrong}
    try:
        return model.model_validate(fits)
    except ValidationError:
        return NOTHING


def _value(wanted: Any, raw: Any) -> Any:
    """Return the value of a field in the form that the field wants, or NOTHING; its bounds are not looked at."""
    if raw is NOTHING:
        return NOTHING
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return _value(inner[0], raw)
    if origin in (Union, types.UnionType):
        return None if raw is None else _value(next(each for each in inner if each is not type(None)), raw)
    if origin is tuple:
        entries = raw[-MOST_ENTRIES:] if isinstance(raw, list) else []
        return tuple(each for each in (_value(inner[0], entry) for entry in entries) if each is not NOTHING)
    if origin is dict:
        entries = list(raw.items())[:MOST_ENTRIES] if isinstance(raw, dict) else []
        found = {printable(key, 100): _value(inner[1], entry) for key, entry in entries}
        return {key: each for key, each in found.items() if each is not NOTHING}
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return _part(wanted, raw)
    match raw:
        case str():
            return printable(raw, LONGEST_TEXT)
        case bool():
            return raw if wanted is bool else NOTHING
        case int() | float():
            return raw if abs(raw) <= LARGEST and math.isfinite(raw) else NOTHING
    return NOTHING
