"""Where the time of a job went since its creation: all parts add up to the wall clock, whatever happened."""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.control import Goodput, Progress
from rljob_api.exits import Cause, Exit
from rljob_operator.status.goodput import (
    OPERATORS,
    Lifetime,
    at_the_end,
    duration,
    lifetime,
    sentence,
    since_creation,
)
from rljob_operator.world.history import AttemptRecord, JobHistory
from support.operator.operator_world import NOW, Surroundings, raw_job, running

GPUS = 4
CREATED = 1_800_000_000.0


@dataclass
class Past:
    """A job that lives, and the wall clock by part as it really was."""

    now: float = CREATED
    truth: dict[str, float] = field(default_factory=dict)
    attempts: list[AttemptRecord] = field(default_factory=list)
    began: float | None = None
    until: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)

    def spends(self, part: str, seconds: float) -> None:
        self.truth[part] = self.truth.get(part, 0.0) + seconds
        self.now += seconds

    def attempt(self, how: dict[str, Any]) -> None:
        """The job waits, gets its pods, and trains until it ends in one way or another."""
        follows_failure = bool(self.attempts) and self.attempts[-1].cause is not Cause.SUSPENDED
        asked = None
        if not follows_failure and how["suspended"]:
            self.spends("suspended", how["suspended"])
            asked = int(self.now)
        self.spends("backOff" if follows_failure and self.began else "queue", how["waits"])
        due = math.ceil(self.now)
        self.spends("pods" if self.began else "provision", how["pods"])
        number = len(self.attempts) + 1
        record = {
            "number": number,
            "cluster": "c",
            "start_after": due,
            "asked": asked,
            "exit_code": int(Exit.LOST_PEER),
        }
        if not how["starts"]:
            self.attempts.append(AttemptRecord(**record, ended=int(self.now), cause=Cause.SUSPENDED))
            return
        self.began = self.began or self.now
        seen = int(self.now + how["lag"])
        for part in ("load", "train", "checkpoint"):
            self.spends(part, how[part])
            self.phases[part] = self.phases.get(part, 0.0) + how[part]
        self.until = self.now
        self.spends("detection", how["detection"])
        cause = Cause.SUSPENDED if how["drained"] else Cause.INFRASTRUCTURE
        self.attempts.append(AttemptRecord(**record, started=seen, ended=int(self.now) + 1, cause=cause))

    @property
    def told(self) -> Goodput:
        """What the driver of the last attempt says."""
        assert self.began is not None
        wall, known = self.until - self.began, sum(self.phases.values())
        return Goodput(
            wall_seconds=wall,
            effective_share=self.phases["train"] / wall,
            seconds={**self.phases, "recovery": wall - known},
            lost_gpu_seconds=GPUS * (wall - self.phases["train"]),
        )


SECONDS = st.floats(5, 4000)
HOW = st.fixed_dictionaries(
    {
        "suspended": st.just(0.0) | SECONDS,
        "waits": st.just(0.0) | SECONDS,
        "pods": SECONDS,
        "starts": st.booleans(),
        "lag": st.floats(0, 5),
        "load": st.floats(60, 600),
        "train": st.floats(600, 20_000),
        "checkpoint": st.floats(1, 100),
        "detection": st.floats(6, 300),
        "drained": st.booleans(),
    }
)
LAST = HOW.map(lambda how: {**how, "starts": True})


def lived(past: list[dict[str, Any]], last: dict[str, Any]) -> Past:
    found = Past()
    for how in (*past, last):
        found.attempt(how)
    return found


def life(found: Past, ended: int | None = None) -> Lifetime:
    first = next(each.started for each in found.attempts if each.started is not None)
    return Lifetime(CREATED, tuple(found.attempts), first, ended)


@given(st.lists(HOW, max_size=8), LAST)
def test_all_parts_add_up_to_the_wall_clock_since_the_creation(past, last):
    found = lived(past, last)
    goodput = since_creation(found.told, len(found.attempts), life(found), GPUS)
    assert sum(goodput.seconds.values()) == pytest.approx(goodput.wall_seconds, abs=1e-3)
    assert goodput.wall_seconds == pytest.approx(found.until - CREATED, rel=0.01)
    base = goodput.wall_seconds - goodput.seconds.get("suspended", 0.0)
    assert goodput.effective_share * base == pytest.approx(found.phases["train"], rel=1e-6)


@given(st.lists(HOW, max_size=8), LAST)
def test_every_part_is_as_it_was(past, last):
    found = lived(past, last)
    seconds = since_creation(found.told, len(found.attempts), life(found), GPUS).seconds
    truth = {**found.truth, "detection": found.truth["detection"] - last["detection"]}
    # The operator sees a start up to 5 s late, and its times are whole seconds.
    tolerance = 8.0 * len(found.attempts)
    assert {part for part in truth if abs(seconds.get(part, 0.0) - truth[part]) > tolerance} == set()


@given(st.lists(HOW, max_size=8), LAST)
def test_a_job_that_has_ended_accounts_for_all_of_its_time(past, last):
    found = lived(past, last)
    ended = math.ceil(found.now) + 30
    now = since_creation(found.told, len(found.attempts), life(found, ended), GPUS)
    later = at_the_end(since_creation(found.told, len(found.attempts), life(found), GPUS), life(found, ended))
    for goodput in (now, later):
        assert sum(goodput.seconds.values()) == pytest.approx(ended - CREATED, rel=0.01)
        assert goodput.wall_seconds == pytest.approx(ended - CREATED, abs=6)
    assert at_the_end(later, life(found, ended)) == later


@given(st.lists(HOW, max_size=8), LAST, st.integers(1, 8))
def test_attempts_that_a_status_has_forgotten_change_no_sum(past, last, forgotten):
    found = lived(past, last)
    left = Lifetime(CREATED, tuple(found.attempts[forgotten:]), life(found).started)
    goodput = since_creation(found.told, len(found.attempts), left, GPUS)
    assert sum(goodput.seconds.values()) == pytest.approx(goodput.wall_seconds, abs=1e-3)


def test_a_job_without_a_driver_or_a_time_of_creation_has_no_times():
    record = AttemptRecord(1, "c", 0)
    assert lifetime(JobHistory((record,)), "2027-01-15T08:00:00Z") is None
    assert lifetime(JobHistory((record,), started=5), "") is None
    assert lifetime(JobHistory((record,), started=5), "2027-01-15T08:00:00Z").created == 5


def test_times_of_gpus_in_a_queue_are_not_lost_and_those_of_pods_without_a_driver_are():
    found = Past()
    base = {"suspended": 0.0, "waits": 100.0, "pods": 10.0, "starts": True, "lag": 0.0}
    base |= {"load": 60.0, "train": 600.0, "checkpoint": 10.0, "detection": 20.0, "drained": True}
    found.attempt(base)
    found.attempt(base)
    goodput = since_creation(found.told, 2, life(found), GPUS)
    idle = 10 + 60 + 10 + 20 + 10 + 60 + 10
    assert goodput.lost_gpu_seconds == pytest.approx(GPUS * idle, abs=GPUS * 3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40, "40 s"), (99, "99 s"), (360, "6 min"), (11520, "3 h 12 min"), (172_799, "2 d 0 h"), (190_800, "2 d 5 h")],
)
def test_a_duration_has_two_units_at_most(seconds, text):
    assert duration(seconds) == text


def test_the_sentence_names_the_largest_losses():
    parts = {"train": 9000.0, "rollout": 1483.0, "queue": 360.0, "load": 300.0, "provision": 200.0, "stop": 177.0}
    told = Goodput(wall_seconds=11520.0, effective_share=0.91, seconds=parts, lost_gpu_seconds=0.0)
    assert sentence(told) == "trained 91 % of 3 h 12 min; 6 min queue, 5 min load, 3 min first pods"
    slept = told.model_copy(update={"seconds": {**parts, "suspended": 86_400.0}, "wall_seconds": 97_920.0})
    assert sentence(slept).startswith("trained 91 % of 3 h 12 min, after 24 h 0 min suspended; 6 min queue")
    assert str(slept).startswith("91.0% of 3.2 h in steps that count; queue 3%, load 3%, provision 2%")


# Through plans.


def born(seconds_ago: float, **sections: Any) -> Surroundings:
    raw = raw_job(**sections)
    raw["metadata"]["creationTimestamp"] = datetime.fromtimestamp(NOW - seconds_ago, UTC).isoformat()
    return Surroundings(raw)


def trains(around: Surroundings, wall: float, attempt: int = 1, **seconds: float) -> None:
    told = Goodput(wall_seconds=wall, effective_share=seconds["train"] / wall, seconds=seconds, lost_gpu_seconds=0.0)
    progress = Progress(step=3, steps=10, last_step_seconds={"train": 1.0}, goodput=told)
    around.runs(running(attempt=attempt).model_copy(update={"progress": progress}))
    around.now += 60
    around.step()


def seconds_of(around: Surroundings) -> dict[str, float]:
    found: dict[str, float] = around.status["progress"]["goodput"]["seconds"]
    return found


def test_a_status_has_the_time_in_the_queue_and_until_the_first_driver():
    around = born(300)
    around.step()
    around.now += 40
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()
    around.runs()
    around.step()
    trains(around, 100.0, train=90.0, load=10.0)
    assert seconds_of(around) == {"queue": 300, "train": 90, "provision": 40, "load": 10}
    assert around.status["progress"]["goodput"]["wallSeconds"] == 440


def test_a_job_that_was_suspended_at_first_was_not_in_a_queue():
    around = born(300, suspend=True)
    around.step()
    around.now += 500
    around.edit(suspend=False)
    around.to_running()
    trains(around, 100.0, train=90.0, load=10.0)
    assert seconds_of(around) == {"suspended": 800, "train": 90, "load": 10}


def test_a_recovery_is_split_and_the_end_says_where_the_time_went():
    around = born(300).to_running()
    trains(around, 1000.0, train=990.0, load=10.0)
    around.ends(Exit.LOST_PEER)
    around.step()
    around.now += 30
    around.pods_ready()
    around.step()
    around.ray_answers()
    around.step()
    around.runs(running(attempt=2))
    around.step()
    trains(around, 2100.0, attempt=2, train=1900.0, load=120.0, recovery=80.0)
    seconds = seconds_of(around)
    assert {part: seconds.get(part) for part in OPERATORS} == {
        "queue": 300,
        "suspended": None,
        "provision": None,
        "detection": 50,
        "backOff": None,
        "pods": 30,
    }
    around.ends(Exit.OK)
    around.step()
    assert (
        around.condition("Succeeded")["message"]
        == "all steps are done; trained 79 % of 40 min; 5 min queue, 2 min load, 50 s detection"
    )
    assert around.plan().is_empty
