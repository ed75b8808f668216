"""The transitions of a status that become events, and their words."""

from datetime import UTC, datetime
from typing import Any

import pytest

from rljob_api.status import Condition, JobEngines, RecoveryStep, Status
from rljob_operator.status.events import Event, events_between

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def condition(kind: str, status: str, reason: str = "Because") -> Condition:
    return Condition(type=kind, status=status, last_transition_time=NOON, reason=reason, message="in a sentence")


def step(action: str) -> RecoveryStep:
    return RecoveryStep(time=NOON, action=action, target="engine-0", cause="killed by SIGKILL")


@pytest.mark.parametrize(
    ("kind", "reported", "event"),
    [
        ("Admitted", "False", "Warning"),
        ("ClusterReady", "True", "Normal"),
        ("Training", "True", "Normal"),
        ("Degraded", "True", "Warning"),
        ("Sound", "False", "Warning"),
        ("Succeeded", "True", "Normal"),
        ("Failed", "True", "Warning"),
    ],
)
def test_a_condition_is_reported_with_one_of_its_statuses(kind: str, reported: str, event: Any):
    other = {"True": "False", "False": "True"}[reported]
    new = Status(conditions=(condition(kind, reported),))

    assert list(events_between(Status(), new)) == [Event(event, kind, "Because", "in a sentence")]
    assert list(events_between(new, Status(conditions=(condition(kind, other),)))) == []
    assert list(events_between(new, new)) == []


def test_another_reason_is_reported_and_what_comes_after_a_silent_condition_too():
    old = Status(conditions=(condition("Failed", "True"),))
    new = Status(conditions=(condition("Ready", "True"), condition("Failed", "True", "OutOfMemory")))

    assert [event.reason for event in events_between(old, new)] == ["OutOfMemory"]


def test_a_recovery_is_reported_once_and_giving_up_by_its_condition():
    new = Status(recovery=(step("RestartEngine"), step("GiveUp"), step("ReplaceCluster")))

    note = "engine-0: killed by SIGKILL"
    assert list(events_between(Status(recovery=(step("RestartEngine"),)), new)) == [
        Event("Warning", "ReplaceCluster", "ReplaceCluster", note)
    ]


def test_another_number_of_engines_is_reported():
    old, new = Status(engines=JobEngines(desired=2)), Status(engines=JobEngines(desired=4))

    assert list(events_between(old, new)) == [Event("Normal", "Scale", "Scaled", "engines: 2 -> 4")]
    assert list(events_between(new, new)) == list(events_between(Status(), new)) == []


def test_a_suspension_is_reported_when_it_begins():
    old, new = Status(phase="Training"), Status(phase="Suspended")

    assert list(events_between(old, new)) == [
        Event("Normal", "Suspend", "Suspended", "the job is suspended and its pods are freed")
    ]
    assert list(events_between(new, new)) == list(events_between(new, old)) == []
