"""The status of an RLJob."""

import json

import pytest
from pydantic import ValidationError

from rljob_api.control import EngineState
from rljob_api.status import MOST_ATTEMPTS, AttemptStatus, JobEngine, Status
from support.api.sample_rljob_status import NOON, SAMPLE


def written(status: Status) -> str:
    return status.model_dump_json(by_alias=True, exclude_none=True)


def test_a_status_survives_being_written_and_read():
    assert Status.model_validate_json(written(SAMPLE)) == SAMPLE


def test_the_sample_sets_every_field():
    assert [name for name in Status.model_fields if not getattr(SAMPLE, name)] == []


def test_times_are_rfc_3339():
    assert json.loads(written(SAMPLE))["startTime"] == "2026-11-21T12:00:00Z"


def test_an_engine_has_the_states_of_the_control_protocol():
    assert {JobEngine(name="e", state=state, since=NOON).state for state in EngineState} == set(EngineState)


def test_a_status_stays_small():
    attempts = tuple(
        AttemptStatus(number=number, cluster="c", start_after=NOON) for number in range(1, MOST_ATTEMPTS + 2)
    )

    with pytest.raises(ValidationError, match="at most 100 items"):
        Status(attempts=attempts)
