"""The table of metrics: reductions, and every place that shows a metric follows from one line."""

from collections import Counter
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path

import pytest

from rljob_trainer.learners.group import summary
from rljob_trainer.learners.rank.loss import reduction
from rljob_trainer.metric_table import Metric, Plot, metric, table
from rljob_trainer.metrics import LearnerMetrics, OptimizerStep, StepMetrics, combined, over_steps
from rljob_trainer.reporting.events import EventLog
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.prometheus import Metrics
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.reading.html import figures
from rljob_trainer.reporting.records import StepRecord
from rljob_trainer.reporting.tensorboard import scalars
from support.operator.metrics_page import families, scalars_section
from support.tables import each_of
from support.trainer.synthetic_run import SyntheticRun

LINES = table(StepMetrics)
UNITS = {
    "nats": "nats",
    "ratio": "share",
    "steps": "steps",
    "tokens": "tokens",
    "bytes": "bytes",
    "watts": "W",
    "celsius": "°C",
}
"""by the last word of a name in Prometheus"""


@dataclass(frozen=True, kw_only=True)
class Wider(StepMetrics):
    """The table with one more line."""

    dead: float | None = metric(
        "Share of dead tokens",
        "share",
        "rljob_dead_ratio",
        "train/dead",
        tokens="mean",
        plot=Plot("Dead tokens", "dead"),
    )


class WiderRecord(StepRecord, Wider):
    """As `StepRecord` would be with that line."""


@pytest.fixture
def record() -> WiderRecord:
    return WiderRecord(time=1.0, step=1, phase_seconds={}, dead=0.25)


def test_a_new_line_reaches_prometheus_and_the_page_of_metrics(record: WiderRecord, tmp_path: Path) -> None:
    metrics = Metrics(Phases(lambda: 0.0), 1, [], [], lambda: None, tmp_path, kind=Wider)
    metrics.record(record)
    assert "rljob_dead_ratio 0.25" in metrics.render()[1].decode()
    (family,) = (each for each in families(metrics) if each.name == "rljob_dead_ratio")
    assert (family.text, family.unit) == ("Share of dead tokens (last step)", "0–1")


def test_a_new_line_reaches_tensorboard_and_weights_and_biases_and_their_page(record: WiderRecord) -> None:
    assert ("train/dead", 0.25) in scalars(record)
    assert "| `train/dead` | share | Share of dead tokens |" in scalars_section(Wider)


def test_a_new_line_reaches_the_events_and_the_report(record: WiderRecord, tmp_path: Path) -> None:
    SyntheticRun(tmp_path).take(1)
    log = EventLog(tmp_path / "other.jsonl")
    log.record(record)
    log.close()
    assert '"dead":0.25' in (tmp_path / "other.jsonl").read_text()
    (figure,) = (
        each for each in figures(replace(read_history(tmp_path), steps=(record,))) if each.title == "Dead tokens"
    )
    assert (figure.unit, figure.legend) == ("share", (("dead", "primary", "line"),))


def test_a_new_line_is_reduced_over_tokens_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(reduction.TABLE, "dead", table(Wider)["dead"])
    counts_R = torch.tensor([1.0, 1.0, 0.0, 1.0]).double()
    sums = reduction.token_sums(counts_R, dead=torch.tensor([True, False, True, False]))
    totals, largest = reduction.packed([sums, sums], torch.device("cpu"))
    assert reduction.unpacked(totals, largest)["dead"] == pytest.approx(1 / 3)


@each_of([line for line in LINES.values() if line.gauge or line.counter])
def test_a_name_in_prometheus_ends_in_its_unit(line: Metric) -> None:
    name = line.gauge or line.counter
    assert UNITS.get(name.rsplit("_", 1)[1], "") == line.unit


@pytest.mark.parametrize("place", ["gauge", "counter", "tag"])
def test_no_two_metrics_share_a_name(place: str) -> None:
    names = Counter(name for line in LINES.values() if (name := getattr(line, place)))
    assert max(names.values()) == 1


def test_metrics_of_one_figure_have_one_unit() -> None:
    units = {(line.plot.title, line.unit) for line in LINES.values() if line.plot}
    assert len(units) == len({title for title, _ in units})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *((name, 2.0) for name in ("loss", "clip_fraction", "entropy", "kl", "logprob_mismatch", "importance_cut")),
        *((name, 3.0) for name in ("grad_norm", "learning_rate", "critic_grad_norm")),
        *((name, 4) for name in ("train_tokens", "peak_seconds", "skipped")),
    ],
)
def test_optimizer_steps_are_reduced_to_their_mean_their_last_or_their_sum(name: str, wanted: float) -> None:
    steps = [OptimizerStep(**{name: 1}), OptimizerStep(**{name: 3})]
    assert getattr(over_steps(steps), name) == wanted


def test_optimizer_steps_that_did_not_measure_do_not_count() -> None:
    assert over_steps([OptimizerStep(kl=0.5), OptimizerStep()]) == LearnerMetrics(kl=0.5)


def test_shares_and_nats_of_tokens_are_means_over_tokens() -> None:
    lines = table(LearnerMetrics).values()
    assert {line.tokens for line in lines if line.tokens and line.unit in ("share", "nats")} == {"mean"}


def test_perplexity_is_the_exponential_of_the_mean_surprise_over_steps() -> None:
    assert summary([OptimizerStep(surprise=1.0), OptimizerStep(surprise=3.0)], None).perplexity == exp(2.0)


def test_a_kl_that_is_in_the_rewards_takes_the_place_of_the_loss_s() -> None:
    steps = [OptimizerStep(kl=0.5)]
    assert (summary(steps, 0.25).kl, summary(steps, None).kl, summary([], 0.25).kl) == (0.25, 0.5, 0.25)


def test_policy_and_critic_add_their_counts_and_keep_their_own() -> None:
    policy, critic = LearnerMetrics(loss=0.0, skipped=1, train_tokens=7), LearnerMetrics(value_loss=2.0, skipped=2)
    assert combined(policy, critic) == LearnerMetrics(loss=0.0, value_loss=2.0, skipped=3, train_tokens=7)


def test_a_metric_is_shown_nowhere_unless_a_name_is_given() -> None:
    line = Metric("text")
    assert not (line.gauge or line.counter or line.tag or line.plot)


@pytest.mark.parametrize(
    ("peak_seconds", "phases", "wanted"),
    [(2.0, {"train": 5.0, "rollout": 5.0}, 0.4), (0.0, {"train": 5.0}, None), (2.0, {}, None)],
)
def test_utilisation_is_the_time_at_the_peak_over_that_of_training(
    peak_seconds: float, phases: dict[str, float], wanted: float | None
) -> None:
    assert StepMetrics(peak_seconds=peak_seconds, phase_seconds=phases).mfu == wanted


def test_what_the_critic_does_not_measure_is_the_policy_s_and_what_neither_does_is_absent():
    both = combined(LearnerMetrics(expert_load=2.0, dropped_tokens=3), LearnerMetrics())
    assert (both.expert_load, both.dropped_tokens, both.router_entropy) == (2.0, 3, None)
