"""The order of things in an experiment: wait, hit, wait for the recovery, judge. The job is played by a table."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from rljob_api.status import AttemptStatus, JobEngines, JobProgress, LastCheckpoint, Phase, RecoveryStep
from rljob_cli.chaos import account
from rljob_cli.chaos.account import Outcome
from rljob_cli.chaos.experiment import RELEASE_S, Experiment, Hit
from rljob_cli.chaos.faults import Fault
from rljob_cli.chaos.invariants import Invariant
from rljob_cli.chaos.schedule import Planned
from rljob_cli.chaos.seen import Inside, Seen
from rljob_cli.jobs.jobs import Job
from support.api.sample_rljob_status import NOON
from support.cli.sample_job import job
from support.trainer.whole_run import expected_journal, uids

STEP_S = 4.0
SAVED_EVERY = 5
POLL_S = 2.0
WITHIN_S = 100.0
ATTEMPT = AttemptStatus(number=1, cluster="c", start_after=NOON, started=NOON)


@dataclass
class PlayedJob:
    """A job that does a step every 4 s, and after a hit is away for a while; `faulty` says what it does wrong."""

    away_s: float = 10.0
    ends_at_step: int = 1000
    faulty: str = ""
    now_s: float = 0.0
    ends_step_s: float = 0.0
    """until the step in work ends, regardless of a fault"""
    saves_s: float = 0.0
    """after a fault the attempt goes on for a while, and then another one begins; 0: it is the same one"""
    grace_s: float = 30.0
    """of its pods"""
    done: float = 0.0
    """steps"""
    stepped_at_s: float = 0.0
    hits: list[tuple[float, Fault]] = field(default_factory=list)
    returns_at_s: float = 0.0
    recovery: tuple[RecoveryStep, ...] = ()

    def look(self) -> Seen:
        self.now_s += POLL_S
        saves = self.hits and self.now_s < self.hits[-1][0] + self.saves_s
        if self.hits and self.stepped_at_s < self.hits[-1][0] + self.ends_step_s <= self.now_s:
            self.done, self.stepped_at_s = self.done + 1, self.hits[-1][0] + self.ends_step_s
        if saves or (self.now_s >= self.returns_at_s and self.faulty != "stands still") or not self.hits:
            before, self.done = int(self.done), min(self.ends_at_step, self.done + POLL_S / STEP_S)
            self.stepped_at_s = self.now_s if int(self.done) > before else self.stepped_at_s
        processes = {
            "driver": frozenset({(1, 1), (2, 2)} if self.faulty == "two drivers" and self.hits else {(1, 1)}),
            "router": frozenset({(2, 1)}),
            "engine": frozenset[tuple[int, int]](),
            "rank": frozenset[tuple[int, int]](),
        }
        inside = Inside(processes, None, int(self.done) or None, self.now_s - self.stepped_at_s)
        return Seen(self.now_s, self._job(), {"head": inside})

    def hit(self, planned: Planned) -> Hit | None:
        if self.faulty == "no target":
            return None
        self.hits.append((self.now_s, planned.fault))
        self.returns_at_s = self.now_s + self.away_s
        if self.faulty != "silent":
            when = NOON + timedelta(seconds=self.now_s)
            self.recovery += (RecoveryStep(time=when, action="RestartEngine", target="engine-0", cause="c"),)
        return Hit(self.now_s, "pod-1")

    def journal(self, known: Container[int]) -> Sequence[bytes]:
        if self.faulty == "no journal":
            return ()
        records = expected_journal(int(self.done), 4, SAVED_EVERY, uids(epochs=99))
        if self.faulty == "skips" and self.hits:
            records = records[2:]
        return (b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in records),)

    def pods(self) -> Mapping[str, float]:
        return {"pod-1": self.grace_s} if self.faulty == "keeps pods" else {}

    def _job(self) -> Job:
        step = int(self.done)
        is_done = step >= self.ends_at_step
        phase = Phase.SUCCEEDED if is_done else Phase.TRAINING if self.now_s >= self.returns_at_s else Phase.RECOVERING
        if self.faulty == "fails" and self.hits:
            phase = Phase.FAILED
        saved = step // SAVED_EVERY * SAVED_EVERY
        given: dict[str, Any] = {
            "phase": phase,
            "attempt": 2 if self.saves_s and self.hits and self.now_s >= self.hits[-1][0] + self.saves_s else 1,
            "attempts": (ATTEMPT,),
            "recovery": self.recovery,
            "engines": JobEngines(),
            "progress": JobProgress(step=step, weight_version=step),
            "last_checkpoint": LastCheckpoint(step=saved, path="/c", verified=True, time=NOON) if saved else None,
        }
        return job(**given)


@dataclass
class Ran:
    outcome: Outcome
    lines: list[str]
    world: PlayedJob

    @property
    def broken(self) -> list[Invariant]:
        return [each.invariant for each in self.outcome.broken]


def ran(
    faulty: str = "", kinds: Sequence[Fault] = (Fault.ENGINE_KILL,) * 3, for_s: float = 100.0, **played: Any
) -> Ran:
    """Run faults at 20 s, 40 s and so on."""
    world, lines = PlayedJob(faulty=faulty, **played), list[str]()
    schedule = [Planned(20.0 * (n + 1), kind, 0.0) for n, kind in enumerate(kinds)]
    return Ran(Experiment(world, lines.append, WITHIN_S).run(schedule, for_s), lines, world)


def test_faults_come_at_their_times_and_an_honest_job_holds():
    done = ran()
    (first, *_) = done.world.hits
    assert [round(at_s - first[0]) for at_s, _ in done.world.hits] == [0, 20, 40]
    assert (done.broken, len(done.outcome.injected), len(done.lines)) == ([], 3, 3)
    assert done.outcome.duration_s >= 100
    assert done.outcome.journals == 5, "at the start, after each fault, at the end"


def test_the_times_of_a_fault_count_from_the_hit():
    (made, *_) = ran().outcome.injected
    assert made.detected_s == POLL_S
    assert made.next_step_s is not None and 10 - STEP_S <= made.next_step_s <= 10 + STEP_S
    assert made.well_s is not None and 10 <= made.well_s <= 14
    assert made.said == ("RestartEngine engine-0",)


def test_a_fault_waits_for_the_recovery_from_the_one_before():
    times_s = [at_s for at_s, _ in ran(away_s=30.0, for_s=200).world.hits]
    assert min(after - before for before, after in pairwise(times_s)) >= 30


def test_no_fault_comes_after_the_time_is_over():
    done = ran(away_s=30.0, for_s=45)
    assert len(done.world.hits) == 1 and done.broken == []


@pytest.mark.parametrize(
    ("faulty", "invariant"),
    [
        ("silent", Invariant.STATUS_NAMES_FAULT),
        ("stands still", Invariant.RECOVERS),
        ("fails", Invariant.RECOVERS),
        ("two drivers", Invariant.ONE_DRIVER),
        ("skips", Invariant.PROMPTS_ONCE),
    ],
)
def test_a_job_that_does_not_hold_ends_the_experiment_at_the_first_fault(faulty: str, invariant: Invariant):
    done = ran(faulty)
    assert done.broken[0] is invariant, done.outcome.broken
    assert len(done.world.hits) == 1
    assert f"\nbroken: {invariant}: " in account.verdict(done.outcome)


def test_a_job_that_ends_gives_its_pods_back():
    done = ran(ends_at_step=20)
    assert (done.broken, done.outcome.last.status.phase) == ([], Phase.SUCCEEDED)
    assert ran("keeps pods", ends_at_step=20).broken == [Invariant.NOTHING_HELD]


@pytest.mark.parametrize("grace_s", [30.0, 1800.0])
def test_pods_of_a_job_that_has_ended_may_stay_for_their_grace_period(grace_s: float):
    done, honest = ran("keeps pods", ends_at_step=20, grace_s=grace_s), ran(ends_at_step=20)
    late_s = done.outcome.duration_s - honest.outcome.duration_s
    assert grace_s + RELEASE_S < late_s <= grace_s + RELEASE_S + 2 * POLL_S
    assert f"has pods after their {grace_s:.0f} s: pod-1" in done.outcome.broken[0].text


def test_a_step_in_work_that_still_ends_does_not_hide_that_nothing_goes_on():
    (made, *_) = ran(kinds=[Fault.ROUTER_STOP], away_s=30.0, ends_step_s=2.0).outcome.injected
    assert made.next_step_s is not None and made.next_step_s <= 2.0
    assert 30 - 2 * POLL_S <= made.still_s <= 30 + STEP_S


def test_what_an_attempt_does_until_it_ends_is_no_recovery():
    (made, *_) = ran(kinds=[Fault.HEAD_DELETE], away_s=30.0, saves_s=6.0).outcome.injected
    assert made.attempt == 2
    assert made.next_step_s is not None and 30 - STEP_S <= made.next_step_s <= 30 + 2 * STEP_S


def test_a_fault_without_a_target_is_left_out():
    done = ran("no target")
    assert (done.broken, done.outcome.injected) == ([], ())
    assert account.verdict(done.outcome).startswith("no fault was made, so nothing is known\n0 faults in ")
    assert done.lines[0].split("  ")[-1] == "left out: nothing runs that it could hit"


def test_a_journal_that_cannot_be_read_is_counted():
    done = ran("no journal")
    assert (done.broken, done.outcome.journals) == ([], 0)
    assert "journal read 0 times" in account.verdict(done.outcome)


def test_a_job_that_never_trains_is_not_hit():
    done = ran(ends_at_step=0)
    assert (done.world.hits, done.broken) == ([], [Invariant.RECOVERS])


def test_the_verdict_names_all_invariants_and_what_was_done():
    held, facts = account.verdict(ran().outcome).split("\n")
    assert held == f"held: {', '.join(Invariant)}"
    assert facts.startswith("3 faults in 1m") and "0 more attempts" in facts and "without a step" in facts


def test_a_line_has_the_fault_its_target_its_times_and_what_the_status_said():
    line = ran().lines[0]
    assert "20s  engine-kill  pod-1  detected 2.0s  next step " in line and line.endswith(": RestartEngine engine-0")


def test_the_plan_has_a_line_for_each_fault_and_what_it_costs():
    schedule = [Planned(12.0, Fault.DRIVER_KILL, 0.1), Planned(30.0, Fault.EVICT, 0.2)]
    assert account.plan("ml/sums", 3, schedule, ["driver in head", "worker-1"]).split("\n") == [
        "ml/sums: 2 faults by seed 3",
        "   12s  driver-kill  driver in head",
        "   30s  evict        worker-1",
        "1 of them end an attempt: recovery.driverRestarts must allow that between two checkpoints",
    ]


def test_a_line_is_short_even_if_the_status_says_much():
    said = tuple(f"{n} {'x' * 1000}" for n in range(50))
    line = account.line(account.Injected(1.0, Fault.EVICT, "pod-1", said=said))
    assert len(line) < 400
    assert "detected never" in line
