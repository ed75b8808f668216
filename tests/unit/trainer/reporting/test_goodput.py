"""Where the wall clock of a run went: every second once, whatever ended an attempt."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.control import Goodput
from rljob_trainer.reporting.events import FILE_NAME, read_events, rewind
from rljob_trainer.reporting.goodput import TimeSpent, time_spent
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.records import EndRecord, EngineRecord, ReadyRecord, Record, RunRecord, StepRecord
from support.trainer.synthetic_run import finished_run

START, LOAD, ROLLOUT, TRAIN, CHECKPOINT, STOP = 2.0, 30.0, 4.0, 5.0, 1.0, 3.0


class Clock:
    """Writes the records of a run with attempts that end in any step, as a driver does, and counts beside it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.records: list[Record] = []
        self.done = 0
        self.parts = dict.fromkeys(
            ("start", "load", "rollout", "train", "checkpoint", "stop", "redone", "recovery"), 0.0
        )

    def spend(self, **phases: float) -> dict[str, float]:
        self.now += sum(phases.values())
        for phase, seconds in phases.items():
            self.parts[phase] += seconds
        return phases

    def attempt(self, saved: int, steps: int, unfinished: float, away: float, ends: bool) -> None:
        """Resume from step `saved`, take steps, work on one more for a while, and end with a record or without."""
        lost = [each for each in self.records if isinstance(each, StepRecord) and each.step > saved]
        self.records = [each for each in self.records if each not in lost]
        for phase in ("rollout", "train", "checkpoint"):
            seconds = sum(each.phase_seconds[phase] for each in lost)
            self.parts[phase] -= seconds
            self.parts["redone"] += seconds
        number = 1 + sum(isinstance(each, RunRecord) for each in self.records)
        started = self.spend(start=START)
        self.records.append(run_record(self.now, number, saved, sum(each.seconds for each in lost), started))
        loaded = self.spend(load=LOAD)
        for step in range(saved + 1, saved + steps + 1):
            spent = self.spend(rollout=ROLLOUT, train=TRAIN, checkpoint=CHECKPOINT)
            if step == saved + 1:
                self.records.append(ReadyRecord(time=self.now, step=saved, phase_seconds=loaded))
            self.records.append(step_record(step, self.now, spent))
        self.done = saved + steps
        if not steps:  # what no record has is between two attempts
            self.parts["load"] -= LOAD
            self.parts["recovery"] += LOAD
        if ends:
            phases = self.spend(rollout=unfinished) if steps else {}
            self.records.append(EndRecord(time=self.now, step=self.done, outcome="failed", phase_seconds=phases))
        else:
            self.spend(recovery=unfinished)
        self.spend(recovery=away)


def run_record(now: float, attempt: int, step: int, lost: float, phases: dict[str, float]) -> RunRecord:
    return RunRecord(
        time=now,
        job="sums",
        model="m",
        task="t",
        steps=100,
        attempt=attempt,
        step=step,
        lost_seconds=lost,
        gpus=8,
        gpus_per_engine=2,
        manifest={},
        phase_seconds=phases,
    )


def step_record(step: int, now: float, phases: dict[str, float]) -> StepRecord:
    return StepRecord.model_construct(time=now, step=step, phase_seconds=phases)


def goodput_of(records: Iterable[Record]) -> Goodput:
    goodput = time_spent(records).goodput
    assert goodput is not None
    return goodput


ATTEMPTS = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.integers(0, 6), st.floats(0.0, 9.0), st.floats(0.0, 500.0), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(ATTEMPTS)
def test_every_second_belongs_to_one_part_whenever_attempts_end_and_wherever_they_resume(
    attempts: list[tuple[float, int, float, float, bool]],
) -> None:
    clock = Clock()
    for share, steps, unfinished, away, ends in attempts:
        clock.attempt(round(share * clock.done), steps, unfinished, away, ends)
    clock.attempt(clock.done, 1, 0.0, 0.0, ends=True)  # until the newest record
    goodput = goodput_of(clock.records)
    assert goodput.wall_seconds == pytest.approx(clock.now - 1000.0)
    assert sum(goodput.seconds.values()) == pytest.approx(goodput.wall_seconds)
    assert goodput.seconds == pytest.approx({part: each for part, each in clock.parts.items() if each > 1e-9}, abs=1e-6)
    effective = clock.parts["rollout"] + clock.parts["train"]
    assert goodput.effective_share == pytest.approx(effective / goodput.wall_seconds)
    assert goodput.lost_gpu_seconds == pytest.approx(8 * (goodput.wall_seconds - effective))


def test_the_events_of_a_run_that_was_restarted_give_its_wall_clock(tmp_path: Path) -> None:
    history = read_history(finished_run(tmp_path))
    goodput = history.goodput
    assert goodput is not None
    assert sum(goodput.seconds.values()) == pytest.approx(history.seconds, rel=0.01)
    assert goodput.seconds["redone"] == pytest.approx(sum(run.lost_seconds for run in history.runs))


def test_a_resume_moves_the_time_of_its_steps_and_none_is_lost(tmp_path: Path) -> None:
    path = finished_run(tmp_path) / FILE_NAME
    before, until = goodput_of(read_events(path)), time_spent(read_events(path)).until
    lost = rewind(path, 30)
    kept = tuple(read_events(path))
    resumed = goodput_of((*kept, run_record(until + 60.0, 3, 30, lost.seconds, {"start": 2.0})))
    assert lost.steps == 6
    assert resumed.seconds["redone"] == pytest.approx(before.seconds["redone"] + lost.seconds)
    assert sum(resumed.seconds.values()) == pytest.approx(before.wall_seconds + 60.0)


def test_the_gpus_of_an_engine_that_was_away_are_lost_while_the_others_go_on() -> None:
    clock = Clock()
    clock.attempt(0, 3, 0.0, 0.0, ends=False)
    known = EngineRecord(time=1050.0, step=1, engine="engine-0", generation=0, cause="ProcessExited", error="")
    back = known.model_copy(update={"detect_seconds": 0.5, "reroute_seconds": 0.1, "return_seconds": 9.5})
    whole = goodput_of(clock.records).lost_gpu_seconds
    for records in ((*clock.records, known, back), (*clock.records, back)):
        assert goodput_of(records).lost_gpu_seconds - whole == pytest.approx(2 * 10.0)
    of_router = back.model_copy(update={"engine": "router"})  # its steps take longer, and no engine is away
    assert goodput_of((*clock.records, of_router)).lost_gpu_seconds == whole


def test_engines_are_not_away_for_longer_than_the_run_has_gpus() -> None:
    clock = Clock()
    clock.attempt(0, 1, 0.0, 0.0, ends=False)
    away = [
        EngineRecord(time=1.0, step=0, engine="e", generation=number, cause="c", error="", return_seconds=1e6)
        for number in range(9)
    ]
    goodput = goodput_of((*clock.records, *away))
    assert goodput.lost_gpu_seconds == pytest.approx(8 * goodput.wall_seconds)


def test_clocks_that_differ_are_no_recovery_while_there_was_one_attempt() -> None:
    clock = Clock()
    clock.attempt(0, 3, 0.0, 0.0, ends=False)
    late = [each.model_copy(update={"time": each.time + 0.02 * number}) for number, each in enumerate(clock.records)]
    assert "recovery" not in goodput_of(late).seconds


def test_a_clock_that_went_back_between_two_attempts_gives_no_negative_time() -> None:
    clock = Clock()
    clock.attempt(0, 3, 0.0, 0.0, ends=False)
    again = run_record(clock.now - 500.0, 2, 3, 0.0, {"start": START})
    goodput = goodput_of((*clock.records, again))
    assert min(goodput.seconds.values()) > 0.0
    assert goodput.effective_share is not None
    assert 0.0 <= goodput.effective_share <= 1.0


def test_before_the_first_record_nothing_is_said() -> None:
    assert TimeSpent().goodput is None


def test_the_sentence_names_what_was_lost_and_leaves_small_parts_out() -> None:
    seconds = {"rollout": 5400.0, "train": 3000.0, "load": 400.0, "recovery": 190.0, "stop": 10.0}
    goodput = Goodput(wall_seconds=9000.0, effective_share=8400 / 9000, seconds=seconds, lost_gpu_seconds=4800.0)
    assert str(goodput) == "93.3% of 2.5 h in steps that count; load 4%, recovery 2%; 1.33 GPU-hours lost"
