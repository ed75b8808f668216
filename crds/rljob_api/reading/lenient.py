"""Reads what it can of a manifest that was accepted once and is refused now, for example by a newer operator."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rljob_api.errors import ManifestError
from rljob_api.reading.field_lookup import Path
from rljob_api.reading.manifest import as_json, same_value
from rljob_api.sections import RLJob, Spec


@dataclass(frozen=True, slots=True)
class Readable:
    """The readable part of a spec."""

    spec: Spec
    left_out: tuple[Path, ...] = ()
    """fields that could not be read: `spec` has their defaults. Empty: only rules between fields are broken, or
    values have the form of an older version: numbers with a point are rounded, options get today's spelling"""


STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "model": {"checkpoint": "unreadable"},
    "data": {"train": {"jsonl": "unreadable"}},
    "rollout": {"promptsPerStep": 1, "samplesPerPrompt": 2, "sampling": {"maxNewTokens": 1}},
    "training": {"steps": 1, "optimizer": {"learningRate": 1e-6}},
}
"""replace required sections that cannot be read; what follows a running job does not read them"""


def readable(content: Mapping[str, Any]) -> Readable | None:
    """Return what can be read of a manifest; None: nothing."""
    left: dict[str, Any] = copy.deepcopy(dict(content))
    left_out: list[Path] = []
    while True:
        try:
            job = RLJob.model_validate_json(as_json(left), strict=True, by_alias=True, by_name=False)
        except ManifestError:
            return None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            loc, meant = first["loc"], same_value(first)
            if meant is not None:
                _set(left, loc, meant)
                continue
            where = max(_deepest(left, loc), tuple(str(part) for part in loc[:2]), key=len)
            if where[0] != "spec" or len(where) < 2 or where in left_out:
                return None
            _remove(left, where)
            left_out.append(where)
        else:
            return Readable(job.spec, tuple(left_out))


def _deepest(content: Mapping[str, Any], loc: tuple[int | str, ...]) -> Path:
    """Return the innermost field on the way to `loc` that exists; a list counts as one field."""
    path: list[str] = []
    here: Any = content
    for part in loc:
        if not isinstance(here, Mapping) or part not in here:
            break
        path.append(str(part))
        here = here[part]
    return tuple(path)


def _remove(content: dict[str, Any], path: Path) -> None:
    """Remove a field, so that its default holds; a required section gets its stand-in."""
    here = content
    for part in path[:-1]:
        here = here[part]
    here.pop(path[-1], None)
    if len(path) == 2 and path[1] in STAND_INS:
        here[path[1]] = STAND_INS[path[1]]


def _set(content: dict[str, Any], loc: tuple[int | str, ...], value: int | str) -> None:
    """Replace the value at a place that exists."""
    here: Any = content
    for part in loc[:-1]:
        here = here[part]
    here[loc[-1]] = value
