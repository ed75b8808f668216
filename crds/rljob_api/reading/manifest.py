"""Parses the text of a manifest into an `RLJob`, or into all its problems.

    text -> one mapping (document.py) -> models (sections.py) -> rules between fields (rules/) -> RLJob

Values are taken as they are: "8" is not a number and 1 is not true, as in the Kubernetes API. pydantic's errors are
translated into problems, so that users never see pydantic.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rljob_api.errors import ABSENT, MOST_PROBLEMS, ManifestError, Problem, first_problems, more
from rljob_api.facts import section_of
from rljob_api.reading import amount, depth, field_lookup, field_types
from rljob_api.reading.document import document
from rljob_api.reading.field_lookup import Path
from rljob_api.reading.text_cache import TextCache
from rljob_api.rules import registry
from rljob_api.rules.claims import Rule
from rljob_api.rules.intended_value import intended
from rljob_api.rules.names import closest, letters
from rljob_api.sections import LONGEST_NAME, NOT_A_NAME, RLJob, Spec

STATUS = "status"
"""written by the operator and printed by `kubectl get -o yaml`; ignored here"""
MOST_KEPT = 8 * 2**20
"""of the manifests whose jobs or problems are kept: the operator parses an object at every event, and specs seldom
change. A job takes twice its text [characters]"""
MOST_NAMED = 8
"""parts of the path to a value that is nested too deep"""
HALF_OF_A_PAIR = "\\ud"
"""begins what JSON writes for a character outside of 16 bits, and for half of one, which is not Unicode"""
KINDS = {
    "int_type": "integer",
    "int_from_float": "integer",
    "float_type": "number",
    "bool_type": "boolean",
    "string_type": "string",
    "tuple_type": "list",
}
"""types of values, by pydantic's errors"""


def load(text: str) -> RLJob:
    """Return the job that a manifest describes, with or without the status that a cluster shows beside it.

    Raises ManifestError with all its problems.
    """
    return parse({key: value for key, value in document(text).items() if key != STATUS})


def problems(text: str) -> tuple[Problem, ...]:
    """Return all problems of a manifest; if empty, `load` returns a job."""
    try:
        load(text)
    except ManifestError as error:
        return error.problems
    return ()


def parse(content: Mapping[str, Any]) -> RLJob:
    """Return the job of a manifest that is already a mapping, for example an object from the API server.

    Raises ManifestError with all its problems.
    """
    text = as_json(content)
    found = _kept.get(text)
    if found is None:
        found = _checked(content, text)
        _kept.put(text, found)
    if isinstance(found, RLJob):
        return found
    raise ManifestError(found)


_kept: TextCache[RLJob | tuple[Problem, ...]] = TextCache(MOST_KEPT)


def _checked(content: Mapping[str, Any], text: str) -> RLJob | tuple[Problem, ...]:
    try:
        job: RLJob = RLJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return invalid(content, error.errors(include_url=False))
    return registry.check(job.spec) or job


def as_json(content: Mapping[str, Any]) -> str:
    if (too_large := amount.problem_of(content)) is not None:
        raise ManifestError((too_large,))
    try:
        text = json.dumps(content)
        if (place := depth.too_deep(content)) is not None:
            raise ManifestError((_too_deep(place),))
        if HALF_OF_A_PAIR in text:
            json.dumps(content, ensure_ascii=False).encode()
        return text
    except RecursionError as error:
        raise ManifestError((_too_deep(depth.too_deep(content) or ()),)) from error
    except ManifestError:
        raise
    except UnicodeEncodeError as error:
        raise ManifestError(
            (Problem("manifest", ABSENT, f"holds text that is not Unicode: {error.reason}"),)
        ) from error
    except TypeError as error:
        raise ManifestError(
            (Problem("manifest", ABSENT, f"has a value that JSON cannot represent: {error}"),)
        ) from error
    except ValueError as error:
        raise ManifestError((Problem("manifest", ABSENT, "contains itself through an alias"),)) from error


def _too_deep(place: depth.Place) -> Problem:
    """Return the problem of a value that is nested too deep, at the last field on the way to it that has a name."""
    named = list(place[:MOST_NAMED])
    while named and isinstance(named[-1], int):
        named.pop()
    return Problem(path_text(tuple(named)) or "manifest", ABSENT, f"is nested deeper than {depth.DEEPEST} levels")


def invalid(content: Mapping[str, Any], errors: list[ErrorDetails]) -> tuple[Problem, ...]:
    """Return the first problems of fields, and of those rules that read none of the wrong fields."""
    found = [translated(error) for error in errors[:MOST_PROBLEMS]]
    if len(errors) > MOST_PROBLEMS:
        return (*found, more(len(errors) - MOST_PROBLEMS))
    wrong = {path for error in errors for path in touched(error)}
    spec = content.get("spec")
    related = judged(spec, wrong) if isinstance(spec, Mapping) else ()
    return first_problems((*found, *related))


def touched(error: ErrorDetails) -> set[Path]:
    """Return the fields that an error leaves unknown: its own, and the one that an unknown name was meant to be."""
    path = tuple(str(part) for part in error["loc"])
    known = field_names(error["loc"])
    meant = field_lookup.meant(known[:-1], known[-1]) if error["type"] == "extra_forbidden" else None
    return {path, *(tuple(name.split(".")) for name in (meant or "").split(" or "))}


def judged(content: Mapping[str, Any], wrong: set[Path]) -> tuple[Problem, ...]:
    """Return the problems of the rules that can be judged without the wrong fields."""
    spec = without(Spec, content, ("spec",), wrong)
    assert isinstance(spec, Spec)
    return first_problems(problem for rule in registry.RULES for problem in judged_by(rule, spec))


def judged_by(rule: Rule, spec: Spec) -> tuple[Problem, ...]:
    try:
        return first_problems(rule(spec))
    except AttributeError:
        return ()  # it reads a missing or wrong field, which is reported already


def without(model: type[BaseModel], content: Mapping[str, Any], path: Path, wrong: set[Path]) -> BaseModel:
    """Return a model that lacks the wrong fields altogether: reading one raises AttributeError."""
    values: dict[str, Any] = {}
    absent = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        here, value = (*path, key), content.get(key)
        section = section_of(field.annotation)
        if here in wrong or (key not in content and field.is_required()):
            absent.append(name)
        elif key in content and section and isinstance(value, Mapping):
            values[name] = without(section, value, here, wrong)
        elif key in content and any(other[: len(here)] == here for other in wrong):
            absent.append(name)
        elif key in content:
            values[name] = field_types.adapter(field).validate_json(json.dumps(value), strict=True)
    built = model.model_construct(**values)
    for name in absent:
        built.__dict__.pop(name, None)
    return built


def translated(error: ErrorDetails) -> Problem:
    """Return one of pydantic's errors as a problem."""
    field, value, context = path_text(error["loc"]), error["input"], error.get("ctx", {})
    if "_type" in error["type"] and value is None:
        return Problem(field, None, null_rule(error["loc"]))
    match error["type"]:
        case "extra_forbidden":
            return unknown(error["loc"])
        case "missing":
            return Problem(field, ABSENT, f"is missing: {belongs(error['loc'])}")
        case "enum" | "literal_error":
            return choice(field, value, context["expected"])
        case "greater_than_equal" | "less_than_equal":
            bound = field_types.number(context["ge" if "ge" in context else "le"])
            rule = "is less than" if error["type"].startswith("greater") else "is more than"
            return Problem(field, value, f"{rule} {bound}", bound)
        case "greater_than" | "less_than":
            bound = field_types.number(context["gt" if "gt" in context else "lt"])
            side = "above" if error["type"].startswith("greater") else "below"
            return Problem(field, value, f"is not {side} {bound}", usual(error["loc"]) or f"a number {side} {bound}")
        case "finite_number":
            return Problem(field, str(value), "is not finite", usual(error["loc"]))
        case "string_too_short":
            return Problem(field, value, f"is empty; expected {belongs(error['loc'])}")
        case "string_too_long" | "string_pattern_mismatch" if error["loc"] == ("metadata", "name"):
            return Problem(field, value, NOT_A_NAME, dns_label(str(value)))
        case "string_too_long":
            return Problem(field, value, f"has more than {context['max_length']} characters")
        case "too_long":
            return Problem(field, ABSENT, f"has more than {context['max_length']} entries")
        case kind if "_type" in kind or kind.startswith("int"):
            return Problem(field, value, f"has the wrong type; expected: {wanted(error)}", near_value(error, kind))
        case _:
            return Problem(field, value, f"is refused: {error['msg']}")


def unknown(loc: tuple[int | str, ...]) -> Problem:
    path = field_names(loc)
    field = path_text(loc)
    if reason := field_lookup.needless(path[-1]):
        return Problem(field, ABSENT, f"unknown field, and not needed: {reason}")
    if reason := field_lookup.lacking(path[-1]):
        return Problem(field, ABSENT, f"unknown field: {reason}")
    if meant := field_lookup.meant(path[:-1], path[-1]):
        return Problem(field, ABSENT, "unknown field", meant)
    return Problem(field, ABSENT, f"unknown field; known here: {', '.join(field_lookup.siblings(path[:-1]))}")


def choice(field: str, value: object, expected: str) -> Problem:
    options = re.findall(r"'([^']*)'", expected)
    rule = f"is none of {', '.join(options)}" if len(options) > 1 else "is not supported"
    nearest = nearest_option(str(value), options) or (options[0] if len(options) == 1 else None)
    return Problem(field, value, rule, nearest)


def nearest_option(value: str, options: Sequence[str]) -> str | None:
    """Return the option that a value was meant to be: in another case or with other separators, under the name of
    another system, or with a typing error.
    """
    meant = field_lookup.OTHER_VALUES.get(letters(value))
    return meant if meant in options else closest(value, options, cutoff=0.5)


def belongs(loc: tuple[int | str, ...]) -> str:
    """Return what belongs in a field, or in the list or mapping of which this is an entry: its text, what it takes."""
    entries, names = field_lookup.entries(), field_names(loc)
    while names not in entries:  # a key of a mapping
        names = names[:-1]
    entry = entries[names]
    takes = field_types.kind(entry.field)
    if entry.section is not None:
        required = [field.alias or name for name, field in entry.section.model_fields.items() if field.is_required()]
        takes = f"section with {', '.join(required)}" if required else takes
    return f"{summary(entry.text)} ({takes})" if entry.text else takes


def summary(text: str) -> str:
    """Return the first sentence of a field's text, without the names that other systems have for it."""
    return re.split(r"[.;] |\.$", " ".join(text.split()))[0]


def usual(loc: tuple[int | str, ...]) -> str | None:
    entry = field_lookup.entries().get(field_names(loc))
    return (field_types.default(entry.field) or None) if entry else None


def null_rule(loc: tuple[int | str, ...]) -> str:
    if default := usual(loc):
        return f"is not a value; leave the field out for its default {default}"
    entry = field_lookup.entries().get(field_names(loc))
    return "is not a value" if entry is None else f"is not a value; expected: {belongs(loc)}"


def wanted(error: ErrorDetails) -> str:
    entry = field_lookup.entries().get(field_names(error["loc"]))
    if entry is not None:
        return field_types.kind(entry.field)
    return {"int_type": "whole number", "string_type": "text"}.get(error["type"], error["type"].removesuffix("_type"))


def near_value(error: ErrorDetails, kind: str) -> str | None:
    """Return the value that was meant by one of the wrong type, if that is obvious."""
    whole = nearest_whole(error["loc"], error["input"]) if kind.startswith("int") else None
    return intended(error["input"], KINDS.get(kind, kind)) if whole is None else str(whole)


def same_value(error: ErrorDetails) -> int | str | None:
    """Return a wrong value as today's models take it, if an older version took it; None: it is wrong."""
    if error["type"] in ("enum", "literal_error"):
        options = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return next((option for option in options if letters(option) == letters(str(error["input"]))), None)
    return nearest_whole(error["loc"], error["input"])


def nearest_whole(loc: tuple[int | str, ...], value: object) -> int | None:
    """Return the whole number within a field's bounds that is closest to a number with a point; None: it is none."""
    entry = field_lookup.entries().get(field_names(loc))
    if entry is None or not isinstance(value, float) or not math.isfinite(value):
        return None
    schema = field_types.adapter(entry.field).json_schema()
    bounds = next((each for each in schema.get("anyOf", [schema]) if each.get("type") == "integer"), None)
    if bounds is None:
        return None
    least = bounds.get("minimum", bounds.get("exclusiveMinimum", -math.inf) + 1)
    most = bounds.get("maximum", bounds.get("exclusiveMaximum", math.inf) - 1)
    return round(min(max(value, float(least)), float(most)))


def dns_label(text: str) -> str | None:
    label = re.sub(r"[^a-z0-9]+", "-", text.lower())[:LONGEST_NAME].strip("-").lstrip("0123456789-")
    return label or None


def field_names(loc: tuple[int | str, ...]) -> Path:
    """Return the path of a field in the models, where the entries of a list have no numbers."""
    return tuple(part for part in loc if isinstance(part, str))


def path_text(loc: tuple[int | str, ...]) -> str:
    """Return `spec.rollout.sampling.stop[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
