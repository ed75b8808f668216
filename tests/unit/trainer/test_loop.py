"""The loop, with parts that only note what was asked of them."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from rljob_trainer.cadence import Cadence
from rljob_trainer.loop import train
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.parts import Parts
from rljob_trainer.reporting.phases import Phases

METRICS = LearnerMetrics(
    loss=0.0,
    grad_norm=1.0,
    learning_rate=0.1,
    skipped=0,
    train_tokens=1,
    clip_fraction=0.0,
    kl=None,
    entropy=None,
    logprob_mismatch=0.0,
)


@dataclass
class Recorder:
    """Every part at once: appends what it was asked to a list."""

    events: list[str] = field(default_factory=list)
    requested: bool = False
    stop_at: int | None = None

    def collect(self, step: int):
        self.events.append(f"take {step}")
        return ()

    def consumed(self, step: int) -> None:
        self.events.append(f"consumed {step}")

    def score(self, groups):
        self.events.append("score")
        return ()

    def __call__(self, groups):
        return ()

    def train(self, batches):
        self.events.append("train")
        return METRICS

    @contextmanager
    def training(self):
        self.events.append("learner's turn")
        yield
        self.events.append("engines' turn")

    @contextmanager
    def saving(self):
        self.events.append("room to save")
        yield
        self.events.append("engines' room")

    def publish(self, version: int):
        self.events.append(f"publish {version}")
        return Publication(version=version, seconds=0.0, engines=(), failed={})

    def measure(self):
        return Accuracy(None, None, 0)

    def begin(self, step: int) -> None:
        self.events.append(f"begin to save {step}")

    def check(self) -> None:
        self.events.append("check")

    def save(self, step: int) -> Path:
        self.events.append(f"save {step}")
        return Path()

    def step(self, step, groups, training, publication) -> None:
        self.events.append(f"report {step}")
        self.requested = step == self.stop_at

    def evaluation(self, step, accuracy) -> None:
        self.events.append(f"evaluate {step}")


def parts_of(recorder: Recorder, steps: int = 4) -> Parts:
    return Parts(
        rollouts=recorder,
        rewards=recorder,
        batches=recorder,
        learner=recorder,
        gpu_sharing=recorder,
        weights=recorder,
        evaluation=recorder,
        checkpoints=recorder,
        report=recorder,
        phases=Phases(count(0.0).__next__),
        cadence=Cadence(steps=steps, save_interval=2, evaluation_interval=3),
        orders=recorder,
    )


def test_a_step_trains_before_it_publishes_and_publishes_before_it_saves():
    recorder = Recorder()
    train(parts_of(recorder, steps=1), first=0, steps=1)
    assert recorder.events == [
        "evaluate 0",
        "take 0",
        "score",
        "learner's turn",
        "train",
        "engines' turn",
        "publish 1",
        "consumed 0",
        "report 1",
        "evaluate 1",
        "room to save",
        "save 1",
        "engines' room",
    ]


def test_the_loop_saves_and_evaluates_at_its_intervals_and_at_the_end():
    recorder = Recorder()
    assert train(parts_of(recorder), first=0, steps=4)
    due = [event for event in recorder.events if event.startswith(("begin", "check", "save", "evaluate"))]
    assert due == ["evaluate 0", "check", "begin to save 2", "evaluate 3", "check", "evaluate 4", "save 4"]


def test_a_stop_saves_and_ends_after_the_running_step():
    recorder = Recorder(stop_at=1)
    assert not train(parts_of(recorder), first=0, steps=4)
    assert recorder.events[-2:] == ["save 1", "engines' room"]


def test_a_stop_in_the_last_step_is_a_finished_run():
    recorder = Recorder(stop_at=4)
    assert train(parts_of(recorder), first=0, steps=4)


def test_a_resumed_loop_goes_on_with_the_next_step():
    recorder = Recorder()
    train(parts_of(recorder), first=3, steps=4)
    assert recorder.events[0] == "take 3"


def test_every_phase_of_a_step_is_measured():
    parts = replace(parts_of(Recorder()), cadence=Cadence(steps=1, save_interval=1, evaluation_interval=1))
    train(parts, first=0, steps=1)
    assert {"rollout", "reward", "advantage", "train", "publish", "report", "evaluate", "checkpoint"} <= set(
        parts.phases.totals()
    )


def test_an_order_to_end_before_the_first_step_is_followed_at_once():
    recorder = Recorder(requested=True)
    assert not train(parts_of(recorder), first=0, steps=4)
    assert recorder.events == []
