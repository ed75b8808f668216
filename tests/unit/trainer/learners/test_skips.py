"""Skipped optimizer steps count against a limit while they are among the last hundred."""

import pytest

from rljob_trainer.learners.errors import TrainingDivergedError
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.learners.rank_calls import Rank
from rljob_trainer.learners.skips import WINDOW, after
from rljob_trainer.metrics import OptimizerStep


def group(monkeypatch, resumed: tuple[int, ...] = ()) -> LearnerGroup:
    """Return a group without ranks, which has loaded a checkpoint."""
    made = LearnerGroup(make=object, actor_options=[], layout=None, timeout_s=1.0, max_skipped=5)
    answers = {Rank.spread: [None], Rank.recent_skips: [resumed]}
    monkeypatch.setattr(made, "call", lambda method, *_: answers[method])
    monkeypatch.setattr(made, "_moving", lambda what, method, *_, alive: {Rank.load: [7]}[method])
    made.load("iter_0000007")
    return made


def take(made: LearnerGroup, *skipped: int) -> None:
    made._count_skipped([OptimizerStep(skipped=each) for each in skipped])


def test_six_skipped_steps_in_ten_thousand_are_no_divergence(monkeypatch):
    made = group(monkeypatch)
    for _ in range(60):
        take(made, *[0] * 166, 1)


def test_six_of_the_last_hundred_are(monkeypatch):
    made = group(monkeypatch)
    take(made, *([1] + [0] * 18) * 5)
    with pytest.raises(TrainingDivergedError, match=r"6 of the last 96 .*maxSkippedSteps allows 5"):
        take(made, 1)


def test_those_before_the_checkpoint_count_too(monkeypatch):
    made = group(monkeypatch, resumed=(1, 1, 1, 0, 1, 1))
    with pytest.raises(TrainingDivergedError):
        take(made, 1)


def test_a_window_forgets_the_oldest():
    assert after(after((), [1] * 3), [0] * WINDOW) == (0,) * WINDOW
    assert after((0, 1), [1]) == (0, 1, 1)
