"""A run goes through its loop also where a debug mode leaves a part out."""

from pathlib import Path

import pytest

from rljob_api.sections import Placement
from rljob_trainer.assembly.cpu_threads import Threads, threads
from rljob_trainer.assembly.null_parts import NoBatches, NoCheckpoints, NoEngines, NoGpuSharing, NoLearner, SameWeights
from rljob_trainer.cadence import Cadence
from rljob_trainer.loop import train
from rljob_trainer.metrics import Accuracy, Publication
from rljob_trainer.parts import Parts
from rljob_trainer.reporting.measurements import step_metrics
from rljob_trainer.reporting.phases import Phases


class Rest:
    """The parts that every run has: notes the calls."""

    requested = False

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def collect(self, step):
        return ()

    def consumed(self, step):
        self.calls.append(("consumed", step))

    def score(self, groups):
        return ()

    def measure(self):
        return Accuracy(None, None, 0)

    def evaluation(self, step, accuracy):
        self.calls.append(("evaluation", step))

    def step(self, step, groups, training, publication):
        self.calls.append(("step", step, training, publication))


def parts(rest: Rest, directory: Path, weights) -> Parts:
    return Parts(
        rollouts=rest,
        rewards=rest,
        batches=NoBatches(),
        learner=NoLearner(),
        gpu_sharing=NoGpuSharing(),
        weights=weights,
        evaluation=rest,
        checkpoints=NoCheckpoints(directory),
        report=rest,
        phases=Phases(lambda: 0.0),
        cadence=Cadence(3, 2, 10),
        orders=rest,
    )


def test_without_a_learner_every_step_keeps_the_first_weights_and_saves_nothing(tmp_path: Path):
    rest, first = Rest(), Publication(0, 1.5, ("engine-0",), {}, {"transfer": 1.0})
    assert train(parts(rest, tmp_path, SameWeights(first)), first=0, steps=3)

    steps = [call for call in rest.calls if call[0] == "step"]
    assert [publication for *_, publication in steps] == [Publication(0, 0.0, ("engine-0",), {})] * 3
    assert all(training.loss is None for _, _, training, _ in steps)
    assert step_metrics((), steps[0][2], first).loss is None
    assert [call for call in rest.calls if call[0] == "consumed"] == [("consumed", step) for step in range(3)]
    assert list(tmp_path.iterdir()) == []


def test_without_engines_weights_have_their_versions_and_nobody_to_go_to(tmp_path: Path):
    rest = Rest()
    train(parts(rest, tmp_path, NoEngines()), first=1, steps=3)
    published = [call[3] for call in rest.calls if call[0] == "step"]
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
