"""The metrics endpoint, parsed as Prometheus parses it."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rljob_trainer.engines.lifecycle import (
    Dead,
    ProbeFailed,
    ProcessExited,
    PublishFailed,
    Stale,
    StartFailed,
    advance,
)
from rljob_trainer.reporting.prometheus import CAUSES, MODES
from support.trainer.synthetic_run import SyntheticRun


def samples(run: SyntheticRun) -> dict[str, float]:
    """Return the metrics by name and labels, for example `rljob_engines{state=Dead}`."""
    _, body = run.report.render_metrics()
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


@pytest.fixture
def run(tmp_path: Path) -> SyntheticRun:
    """Three steps and an evaluation."""
    run = SyntheticRun(tmp_path)
    run.evaluate(0)
    run.take(1)
    run.take(2)
    run.take(3)
    return run


def test_the_content_type_is_that_of_the_text_format(run: SyntheticRun) -> None:
    content_type, _ = run.report.render_metrics()
    assert content_type.startswith("text/plain; version=")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rljob_step", 3),
        ("rljob_steps_wanted", 36),
        ("rljob_steps_total", 3),
        ("rljob_step_seconds_count", 3),
        ("rljob_weight_version", 3),
        ("rljob_heldout_accuracy{mode=sampled}", 0.11),
        ("rljob_heldout_accuracy{mode=greedy}", 0.37),
        ("rljob_evaluation_set_accuracy{mode=sampled}{set=longer}", 0.06),
        ("rljob_evaluation_set_accuracy{mode=greedy}{set=longer}", 0.18),
        ("rljob_skipped_steps_total", 0),
        ("rljob_attempt", 1),
        ("rljob_repeated_ratio", 0.0),
        ("rljob_findings_total{finding=Mismatch}", 0),
        ("rljob_findings_total{finding=DataWait}", 0),
    ],
)
def test_a_metric_has_its_value(run: SyntheticRun, name: str, value: float) -> None:
    assert samples(run)[name] == pytest.approx(value)


@pytest.mark.parametrize(
    "name",
    [
        "rljob_reward_mean",
        "rljob_loss",
        "rljob_grad_norm",
        "rljob_kl_nats",
        "rljob_logprob_mismatch_nats",
        "rljob_rollout_tokens_total",
        "rljob_train_tokens_total",
        "rljob_tokens_per_second{phase=rollout}",
        "rljob_tokens_per_second{phase=train}",
        "rljob_phase_seconds_total{phase=publish}",
        "rljob_last_step_timestamp_seconds",
    ],
)
def test_a_metric_is_exposed(run: SyntheticRun, name: str) -> None:
    assert name in samples(run)


def test_phase_seconds_add_up_to_the_time_until_the_last_step(run: SyntheticRun) -> None:
    phases = [value for name, value in samples(run).items() if name.startswith("rljob_phase_seconds_total")]
    assert sum(phases) == pytest.approx(run.clock.now, rel=0.01)


def test_the_phase_that_goes_on_is_reported_with_its_time(run: SyntheticRun) -> None:
    with run.phases.measure("publish"):
        run.clock.now += 4.0
        assert samples(run)["rljob_current_phase_seconds{phase=publish}"] == pytest.approx(4.0)


def test_engines_are_counted_by_state(run: SyntheticRun) -> None:
    run.report.engines({"Healthy": 2, "Dead": 1})
    run.report.engines({"Healthy": 3})
    assert samples(run)["rljob_engines{state=Healthy}"] == 3
    assert samples(run)["rljob_engines{state=Dead}"] == 0


def test_a_failure_reported_twice_counts_once_and_its_return_once(run: SyntheticRun) -> None:
    run.fail("engine-1", "ProcessExited", "exit code -9", returned=3.0)
    assert samples(run)["rljob_engine_failures_total{cause=ProcessExited}"] == 1
    assert samples(run)["rljob_engine_restarts_total{cause=ProcessExited}"] == 1


def test_an_engine_that_has_not_come_back_is_no_restart(run: SyntheticRun) -> None:
    run.fail("engine-1", "ProcessExited", "exit code -9", returned=None)
    assert samples(run)["rljob_engine_restarts_total{cause=ProcessExited}"] == 0


def test_a_router_that_came_back_is_counted_apart_from_engines(run: SyntheticRun) -> None:
    run.fail("router", "Unresponsive", "3 probes in a row failed", returned=9.0)
    shown = samples(run)
    assert shown["rljob_router_restarts_total{cause=Unresponsive}"] == 1
    assert shown["rljob_router_restarts_total{cause=ProcessExited}"] == 0
    assert {value for name, value in shown.items() if name.startswith("rljob_engine_failures_total")} == {0}


def test_every_cause_of_a_failure_has_a_series_from_the_start() -> None:
    dead = {
        state.cause
        for event in (ProcessExited(0), StartFailed(0), PublishFailed(0), ProbeFailed(0))
        if isinstance(state := advance(Stale(0), event, None, 1), Dead)
    }
    assert set(CAUSES) == dead


def test_what_has_not_been_measured_is_not_a_number(tmp_path: Path) -> None:
    first = samples(SyntheticRun(tmp_path))
    unknown = {name for name, value in first.items() if value != value}
    assert {"rljob_reward_mean", "rljob_last_step_timestamp_seconds", "rljob_heldout_accuracy{mode=greedy}"} <= unknown
    assert {f"rljob_evaluation_set_accuracy{{mode={mode}}}{{set=longer}}" for mode in MODES} <= unknown
    assert first["rljob_gpus"] == 3


def test_no_series_appears_later_so_increases_are_counted_from_zero(run: SyntheticRun, tmp_path: Path) -> None:
    run.fail("engine-1", "Unresponsive", "no answer", returned=3.0)
    before = samples(SyntheticRun(tmp_path / "other"))
    assert {name for name in samples(run) if "_total" in name} == {name for name in before if "_total" in name}


def test_two_runs_in_one_process_do_not_share_metrics(run: SyntheticRun, tmp_path: Path) -> None:
    other = SyntheticRun(tmp_path / "other")
    assert samples(other)["rljob_step"] == 0


def test_a_finding_is_counted_when_it_begins(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for step in range(1, 13):
        run.take(step)
    assert samples(run)["rljob_findings_total{finding=Mismatch}"] == 1
