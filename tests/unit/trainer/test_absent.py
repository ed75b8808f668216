"""A run goes through its loop also where a debug mode leaves a part out."""

import time
from math import isnan
from pathlib import Path

import pytest

from rljob_api.sections import Placement
from rljob_trainer.absent import NoBatches, NoCheckpoints, NoEngines, NoLearner, NoTurns, SameWeights
from rljob_trainer.cadence import Cadence
from rljob_trainer.cores import Threads, threads
from rljob_trainer.evaluation import Accuracy
from rljob_trainer.loop import train
from rljob_trainer.metrics import Publication
from rljob_trainer.parts import Parts
from rljob_trainer.reporting.measurements import step_metrics
from rljob_trainer.reporting.phases import Phases


class Rest:
    """The parts that every run has: notes what it is told."""

    requested = False

    def __init__(self) -> None:
        self.told: list[tuple] = []

    def take(self, step):
        return ()

    def consumed(self, step):
        self.told.append(("consumed", step))

    def score(self, groups):
        return ()

    def measure(self):
        return Accuracy(None, None, 0)

    def evaluation(self, step, accuracy):
        self.told.append(("evaluation", step))

    def step(self, step, groups, training, publication):
        self.told.append(("step", step, training, publication))

    def take_checkpoint(self):
        return False


def parts(rest: Rest, directory: Path, weights) -> Parts:
    return Parts(
        rollouts=rest,
        rewards=rest,
        batches=NoBatches(),
        learner=NoLearner(),
        turns=NoTurns(),
        weights=weights,
        evaluation=rest,
        checkpoints=NoCheckpoints(directory),
        report=rest,
        phases=Phases(time.monotonic),
        cadence=Cadence(3, 2, 10),
        orders=rest,
    )


def test_without_a_learner_every_step_keeps_the_first_weights_and_saves_nothing(tmp_path: Path):
    rest, first = Rest(), Publication(0, 1.5, ("engine-0",), {}, {"transfer": 1.0})
    assert train(parts(rest, tmp_path, SameWeights(first)), first=0, steps=3)

    steps = [told for told in rest.told if told[0] == "step"]
    assert [publication for *_, publication in steps] == [Publication(0, 0.0, ("engine-0",), {})] * 3
    assert all(isnan(training.loss) for _, _, training, _ in steps)
    assert step_metrics((), steps[0][2], first).loss is None
    assert [told for told in rest.told if told[0] == "consumed"] == [("consumed", step) for step in range(3)]
    assert list(tmp_path.iterdir()) == []


def test_without_engines_weights_have_their_versions_and_nobody_to_go_to(tmp_path: Path):
    rest = Rest()
    train(parts(rest, tmp_path, NoEngines()), first=1, steps=3)
    published = [told[3] for told in rest.told if told[0] == "step"]
    assert [(each.version, each.engines, each.failed) for each in published] == [(2, (), {}), (3, (), {})]


@pytest.mark.parametrize(
    ("placement", "ranks", "engines", "shares"),
    [
        (Placement.DISAGGREGATED, 2, 2, Threads(rank=2, engine=2)),
        (Placement.DISAGGREGATED, 2, 0, Threads(rank=4, engine=8)),
        (Placement.DISAGGREGATED, 0, 2, Threads(rank=8, engine=4)),
        (Placement.COLOCATED, 2, 0, Threads(rank=4, engine=8)),
    ],
)
def test_who_is_alone_has_all_cores(placement, ranks, engines, shares):
    assert threads(placement, 8, ranks, engines) == shares
