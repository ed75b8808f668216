"""Several rewards, and judgements that failed, from the groups of a step to everything that people read."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from rljob_cli.main import app
from rljob_trainer.metrics import Accuracy
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.reading.html import figures, write_report
from rljob_trainer.reporting.records import SamplesRecord, StepRecord
from rljob_trainer.rollouts.evaluation import HeldOut
from rljob_trainer.samples import ScoredGroup
from support.trainer.judging import group
from support.trainer.synthetic_run import SyntheticRun

FIRST = ScoredGroup(group("a", "b"), (1.1, 0.0), {"right": (1.0, 0.0), "short": (0.5, 0.0)}, failures=1)
SECOND = ScoredGroup(group("c"), (1.0,), {"right": (1.0,), "short": (0.0,)}, failures=2)


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    """A step with two rewards, three failures, and two more in an evaluation."""
    made = SyntheticRun(tmp_path, tensorboard=True)
    report_step(made, 1, FIRST, SECOND)
    made.report.evaluation(1, Accuracy(0.5, None, 8, failures=2))
    return made


def report_step(run: SyntheticRun, step: int, *groups: ScoredGroup) -> None:
    run.report.step(step, groups, run._training(step), run._publication(step))


def metrics(run: SyntheticRun) -> dict[str, float]:
    _, body = run.report.render_metrics()
    families = text_string_to_metric_families(body.decode())
    samples = [sample for family in families for sample in family.samples if sample.name.startswith("rljob_reward")]
    return {sample.name + "".join(sample.labels.values()): sample.value for sample in samples}


def test_a_step_shows_the_mean_of_each_part_and_counts_failures(run: SyntheticRun, tmp_path: Path):
    (step,) = [record for record in read_events(tmp_path / "events.jsonl") if isinstance(record, StepRecord)]
    assert step.reward_parts == pytest.approx({"right": 2 / 3, "short": 0.5 / 3})
    assert (step.reward_mean, step.reward_failures) == (pytest.approx(2.1 / 3), 3)


def test_a_sample_shows_what_each_part_gave(run: SyntheticRun, tmp_path: Path):
    (shown,) = [record for record in read_events(tmp_path / "events.jsonl") if isinstance(record, SamplesRecord)]
    assert [sample.parts for sample in shown.samples[:2]] == [
        {"right": 1.0, "short": 0.5},
        {"right": 0.0, "short": 0.0},
    ]


def test_prometheus_sees_parts_and_failures_of_steps_and_evaluations(run: SyntheticRun):
    found = metrics(run)
    assert found["rljob_reward_part_meanright"] == pytest.approx(2 / 3)
    assert found["rljob_reward_failures_total"] == 5


def test_prometheus_sees_the_only_reward_as_a_part_too(tmp_path: Path):
    run = SyntheticRun(tmp_path)
    before = metrics(run)
    report_step(run, 1, replace(FIRST, parts_G={}, failures=0))
    assert before["rljob_reward_part_meanreward"] != before["rljob_reward_part_meanreward"]  # NaN
    assert metrics(run)["rljob_reward_part_meanreward"] == pytest.approx(1.1 / 2)


def test_tensorboard_has_a_curve_for_each_part(run: SyntheticRun, tmp_path: Path):
    run.report.end("finished", "")
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [event.value for event in board.Scalars("rollout/reward_parts/short")] == [pytest.approx(0.5 / 3)]
    assert [event.value for event in board.Scalars("rollout/reward_failures")] == [3]


def test_the_report_draws_the_parts_and_counts_what_was_not_judged(run: SyntheticRun, tmp_path: Path):
    report_step(run, 2, replace(FIRST, failures=0))
    write_report(tmp_path)
    assert "Parts of the reward" in [figure.title for figure in figures(read_history(tmp_path))]
    said = " ".join(CliRunner().invoke(app, ["report", str(tmp_path)]).output.split())
    assert "reward parts right 0.67 → 0.50, short 0.17 → 0.25" in said
    assert "not judged 5 judgements failed" in said


def test_a_run_with_one_reward_has_no_figure_of_parts(tmp_path: Path):
    SyntheticRun(tmp_path).take(1)
    assert "Parts of the reward" not in [figure.title for figure in figures(read_history(tmp_path))]


class Asked:
    """Answers every prompt with one group, and scores it with a failure."""

    async def groups(self, *_: object) -> tuple[object, ...]:
        return (FIRST.group,)

    def score(self, groups: object) -> tuple[ScoredGroup, ...]:
        return (FIRST,)


def test_failures_of_an_evaluation_are_counted():
    with Background() as background:
        held_out = HeldOut((FIRST.group.prompt,), Asked(), None, Asked(), 1, True, background)  # type: ignore[arg-type]
        assert held_out.measure() == Accuracy(sampled=0.55, greedy=0.55, questions=1, failures=2)
