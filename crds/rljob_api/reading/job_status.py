"""Reads the status of an RLJob that another version of the operator may have written, or an administrator. Pure.

    status in the cluster ─► read ─► Status, without what this version does not know ─► the operator ─► new Status
             └──────────────────────────────────────────► written ◄─────────────────────────────────────────┘

What this version cannot read stays as it is when it writes: the operator owns the whole status, so what it leaves out
of a write is deleted, and a newer version would have lost it.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rljob_api.reading.depth import shallow
from rljob_api.status import MOST_ATTEMPTS, MOST_CONDITIONS, MOST_STEPS_OF_RECOVERY, Status

Raw = Mapping[str, Any]
KEYS: Mapping[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "attempts": ("number",),
    "recovery": ("time", "action", "target"),
    "items": ("name",),
}
"""the key that distinguishes the entries of a list, by the name of the list"""
MOST: Mapping[str, int] = {
    "conditions": MOST_CONDITIONS,
    "attempts": MOST_ATTEMPTS,
    "recovery": MOST_STEPS_OF_RECOVERY,
}
"""lists of which entries that cannot be read are kept, and how long they may be"""
GONE: Any = object()
"""stands in a list for an entry that cannot be read"""


def read(raw: Any) -> Status:
    """Return what can be read of a status; never raises.

    A field that is unknown or has a wrong value is left out, and so is an entry or a part that lacks what it needs.
    """
    if not isinstance(raw, Mapping):
        return Status()
    try:
        return Status.model_validate(raw)
    except ValidationError as error:
        return _without(copy.deepcopy(shallow(dict(raw))), error)


def readable(raw: Any) -> dict[str, Any]:
    """Return what can be read of a status, as it is written: itself, if that is all of it."""
    try:
        Status.model_validate(raw)
    except ValidationError:
        return dumped(read(raw))
    return dict(raw)


def _without(left: dict[str, Any], error: ValidationError) -> Status:
    """Return the status without what the error names, and what its absence makes wrong."""
    for _ in range(MOST_ROUNDS):
        for each in error.errors(include_url=False, include_input=False):
            _remove(left, each)
        _drop_gone(left)
        try:
            return Status.model_validate(left)
        except ValidationError as next_error:
            error = next_error
    return Status()


MOST_ROUNDS = 20
"""more than a status has levels, on each of which an absence can make a part wrong"""


def _remove(left: dict[str, Any], error: ErrorDetails) -> None:
    loc = error["loc"][:-1] if error["type"] == "missing" else error["loc"]
    holder: Any = left
    for part in loc[:-1]:
        try:
            holder = holder[part]
        except (LookupError, TypeError):
            return  # removed with a part that another error is about
    if not loc or not isinstance(holder, dict | list):
        return
    name = loc[-1]
    if error["type"] == "too_long" and isinstance(holder, dict) and isinstance(holder.get(name), list):
        holder[name] = holder[name][-int(error["ctx"]["max_length"]) :]
    elif isinstance(holder, dict):
        holder.pop(name, None)
    elif isinstance(name, int) and name < len(holder):
        holder[name] = GONE


def _drop_gone(value: Any) -> None:
    """Remove the entries that stand for others that were removed."""
    for each in list(value.values() if isinstance(value, dict) else value):
        if isinstance(each, list):
            each[:] = [entry for entry in each if entry is not GONE]
        if isinstance(each, dict | list):
            _drop_gone(each)


def dumped(status: Status) -> dict[str, Any]:
    """Return a status as it is written."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def written(new: Status, before: Raw) -> dict[str, Any]:
    """Return a new status to be written over the one before, with what of that one this version cannot read."""
    return _kept(before, dumped(read(before)), dumped(new))


def _kept(raw: Raw, known: Raw, new: Raw) -> dict[str, Any]:
    """Return `new` with the parts of `raw` that `known`, which was read from it, does not have."""
    found = dict(new)
    for name, value in raw.items():
        if name not in new:
            if name not in known:
                found[name] = value
        elif isinstance(value, Mapping) and isinstance(new[name], Mapping):
            found[name] = _kept(value, known.get(name) or {}, new[name])
        elif name in KEYS and isinstance(value, list) and isinstance(new[name], list):
            found[name] = _kept_entries(name, value, known.get(name) or (), new[name])
    return found


def _kept_entries(name: str, raw: Sequence[Any], known: Sequence[Raw], new: Sequence[Raw]) -> list[Any]:
    def key(entry: Any) -> tuple[Any, ...]:
        return tuple(str(entry.get(part)) for part in KEYS[name]) if isinstance(entry, Mapping) else ()

    before, there = {key(each): each for each in raw if isinstance(each, Mapping)}, {key(each) for each in known}
    found = [_kept(before[key(each)], _of(known, key, each), each) if key(each) in before else each for each in new]
    mine = {key(each) for each in new}
    unread = [each for which, each in before.items() if which not in there and which not in mine]
    most = MOST.get(name, 0)
    room = max(0, most - len(found))
    return _in_order(name, [*unread[len(unread) - min(room, len(unread)) :], *found])


def _of(known: Sequence[Raw], key: Any, entry: Raw) -> Raw:
    return next((each for each in known if key(each) == key(entry)), {})


def _in_order(name: str, entries: list[Any]) -> list[Any]:
    """Return attempts by their numbers and steps by their times, as this version has them."""
    if name == "attempts":
        return sorted(entries, key=lambda each: each["number"] if isinstance(each.get("number"), int) else 0)
    return sorted(entries, key=lambda each: str(each.get("time"))) if name == "recovery" else entries
