"""Phase accounting: contiguous, exclusive, readable while it goes on."""

import threading

import pytest

from rljob_trainer.reporting.phases import OTHER, Phases
from support.trainer.synthetic_run import Clock


def spend(phases: Phases, clock: Clock, **seconds: float) -> None:
    """Spend time in phases, one after the other."""
    for phase, value in seconds.items():
        with phases.measure(phase):  # type: ignore[arg-type]  # keywords are plain strings
            clock.now += value


def test_phases_add_up_to_the_wall_clock() -> None:
    clock = Clock(100.0)
    phases = Phases(clock)
    spend(phases, clock, rollout=3.0, train=2.0)
    clock.now += 0.5
    assert phases.totals() == {"rollout": 3.0, "train": 2.0, OTHER: 0.5}
    assert sum(phases.totals().values()) == clock.now - 100.0


def test_a_phase_inside_a_phase_is_refused_and_spoils_nothing() -> None:
    clock = Clock()
    phases = Phases(clock)
    with phases.measure("train"):
        with pytest.raises(RuntimeError, match="phase publish begins inside phase train"), phases.measure("publish"):
            raise AssertionError("the body must not run")
        clock.now += 1.0
    assert phases.totals() == {"train": 1.0}


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown phase 'tea'"), Phases(Clock()).measure("tea"):  # type: ignore[arg-type]
        raise AssertionError("the body must not run")


def test_a_phase_that_raises_is_counted_and_over() -> None:
    clock = Clock()
    phases = Phases(clock)
    with pytest.raises(KeyError), phases.measure("reward"):
        clock.now += 2.0
        raise KeyError
    assert phases.current.name == OTHER
    assert phases.totals() == {"reward": 2.0}


def test_a_lap_inside_a_phase_splits_it() -> None:
    clock = Clock()
    phases = Phases(clock)
    with phases.measure("report"):
        clock.now += 1.0
        first = phases.lap()
        clock.now += 0.25
    assert first == {"report": 1.0}
    assert phases.lap() == {"report": 0.25}
    assert phases.totals() == {"report": 1.25}


def test_another_thread_reads_the_current_phase_and_since_when() -> None:
    clock = Clock(7.0)
    phases = Phases(clock)
    seen: list[tuple[str, float, float]] = []
    with phases.measure("publish"):
        clock.now += 3.0
        reader = threading.Thread(
            target=lambda: seen.append((phases.current.name, phases.current.since, phases.seconds_in_current()))
        )
        reader.start()
        reader.join()
    assert seen == [("publish", 7.0, 3.0)]


def test_listeners_get_each_phase_when_it_begins() -> None:
    clock, entered = Clock(), []
    phases = Phases(clock, entered.append)
    spend(phases, clock, rollout=1.0, reward=1.0)
    assert entered == ["rollout", "reward"]
