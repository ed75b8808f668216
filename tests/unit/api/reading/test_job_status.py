"""The status of an RLJob between versions of the operator, and after an administrator has edited it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.reading.job_status import KEYS, dumped, read, readable, written
from rljob_api.status import MOST_ATTEMPTS, Phase, Status
from support.api.sample_rljob_status import SAMPLE

WHOLE = dumped(SAMPLE)
NEW = dumped(SAMPLE.model_copy(update={"phase": Phase.RECOVERING, "restarts": 7}))
RECOVERING = Status.model_validate(NEW)


def edited(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(WHOLE), **fields}


def test_a_status_of_this_version_is_read_as_it_is():
    assert read(WHOLE) == SAMPLE
    assert readable(WHOLE) == WHOLE
    assert written(RECOVERING, WHOLE) == NEW


@pytest.mark.parametrize("raw", [None, 5, "text", [], {}])
def test_what_is_no_status_is_an_empty_one(raw: Any):
    assert read(raw) == Status()


def test_a_field_of_a_newer_version_is_left_out_and_stays_when_this_one_writes():
    raw = edited(goodput={"seconds": 3})
    raw["engines"]["items"][0]["node"] = "n-1"
    raw["attempts"][-1]["zone"] = "b"
    raw["resolved"]["volume"]["fsGroup"] = 5
    assert read(raw) == SAMPLE
    assert readable(raw) == WHOLE
    found = written(RECOVERING, raw)
    assert found == {**raw, "phase": "Recovering", "restarts": 7}


@pytest.mark.parametrize("phase", ["Draining", 5, None, [], {"a": 1}])
def test_a_phase_that_this_version_does_not_know_is_none_and_is_decided_anew(phase: Any):
    raw = edited(phase=phase)
    assert read(raw) == SAMPLE.model_copy(update={"phase": None})
    assert written(RECOVERING, raw) == NEW


def test_entries_that_this_version_cannot_read_stay_where_they_were():
    raw = edited()
    condition = {**raw["conditions"][0], "type": "Warm"}
    attempt = {**raw["attempts"][0], "number": 2**40}
    step = {**raw["recovery"][0], "action": "SwapPod", "time": "2030-01-01T00:00:00Z"}
    raw["conditions"].append(condition)
    raw["attempts"].append(attempt)
    raw["recovery"].append(step)
    assert read(raw) == SAMPLE
    found = written(RECOVERING, raw)
    assert condition in found["conditions"]
    assert found["attempts"] == [*WHOLE["attempts"], attempt]
    assert found["recovery"] == [*WHOLE["recovery"], step]


def test_an_optional_value_that_this_version_cannot_read_stays():
    raw = edited()
    raw["attempts"][0]["cause"] = "Maintenance"
    assert read(raw).attempts[0].cause is None
    assert written(RECOVERING, raw)["attempts"][0]["cause"] == "Maintenance"


def test_what_this_version_has_ended_does_not_come_back():
    less = SAMPLE.model_copy(
        update={"queue": None, "progress": None, "attempts": SAMPLE.attempts[1:], "conditions": ()}
    )
    assert written(less, WHOLE) == dumped(less)


def test_a_longer_list_of_a_newer_version_keeps_its_newest_entries():
    attempts = [{**WHOLE["attempts"][0], "number": number} for number in range(1, MOST_ATTEMPTS + 51)]
    found = read(edited(attempts=attempts))
    assert [each.number for each in found.attempts] == list(range(51, MOST_ATTEMPTS + 51))


def test_what_is_kept_leaves_room_for_what_is_written():
    raw = edited(attempts=[{**WHOLE["attempts"][0], "number": 2**40 + number} for number in range(MOST_ATTEMPTS)])
    found = written(RECOVERING, raw)["attempts"]
    assert len(found) == MOST_ATTEMPTS
    assert found[: len(WHOLE["attempts"])] == WHOLE["attempts"]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in a status."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in parts:
        yield (*place, key)
        yield from places(each, (*place, key))


PLACES = list(places(WHOLE))
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)  # JSON has neither
    | st.text(max_size=5)
    | st.just("x" * 40_000),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(PLACES), ODD), min_size=1, max_size=6), st.dictionaries(st.text(), ODD))
def test_whatever_a_status_holds_it_is_read_and_nothing_of_it_is_lost(edits: list[Any], unknown: dict[str, Any]):
    raw = edited()
    for place, value in edits:
        holder: Any = raw
        try:
            for part in place[:-1]:
                holder = holder[part]
            holder[place[-1]] = value
        except (LookupError, TypeError):
            continue  # an earlier edit has replaced what it was in
    raw |= {name: value for name, value in unknown.items() if name not in WHOLE}
    before = json.dumps(raw)
    found = read(raw)
    assert read(dumped(found)) == found
    assert readable(raw) == (raw if dumped(found) == raw else readable(raw))
    body = written(RECOVERING, raw)
    assert json.dumps(raw) == before, "it is not changed"
    assert read(body) == RECOVERING or set(body) >= set(NEW)
    assert all(body[name] == raw[name] for name in raw if name not in NEW and name not in dumped(found))
    assert {name: body[name] for name in NEW if name not in KEYS and not isinstance(NEW[name], dict)}.items() <= {
        name: NEW[name] for name in NEW
    }.items()
