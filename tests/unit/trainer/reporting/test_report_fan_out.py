"""The Report: from what the loop hands over to what all sinks receive."""

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from pytest import approx

from rljob_api.control import SetAccuracy
from rljob_trainer.metrics import Accuracy, LearnerMetrics, Publication, combined
from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.measurements import chosen_samples, step_metrics
from rljob_trainer.reporting.reading.history import read_history
from rljob_trainer.reporting.reading.html import figures
from rljob_trainer.reporting.records import (
    CheckpointRecord,
    EndRecord,
    EvaluationRecord,
    ReadyRecord,
    RunRecord,
    StepRecord,
)
from rljob_trainer.reporting.report import shows_samples
from rljob_trainer.reporting.tensorboard import scalars
from rljob_trainer.rewards.truncated import masked
from rljob_trainer.samples import Branch, Group, Prompt, Sample, ScoredGroup
from support.trainer.synthetic_run import SyntheticRun, job

TRAINING = LearnerMetrics(
    loss=0.1,
    grad_norm=1.0,
    learning_rate=1e-5,
    skipped=0,
    train_tokens=50,
    clip_fraction=0.0,
    kl=None,
    entropy=None,
    logprob_mismatch=0.0,
)
PUBLICATION = Publication(version=4, seconds=0.1, engines=("engine-0",), failed={})


def group(rewards: tuple[float, ...], lengths: tuple[int, ...], truncated: int = 0) -> ScoredGroup:
    samples = tuple(
        Sample(
            tuple(range(length)), (0.0,) * length, f"r{index}", 3, "length" if index < truncated else "stop", "engine-0"
        )
        for index, length in enumerate(lengths)
    )
    return ScoredGroup(Group(Prompt("0:0", "q", "q", (1,), "l", {}), samples), rewards)


GROUPS = (group((1.0, 0.0, 0.0, 1.0), (2, 4, 6, 8), truncated=1), group((0.0, 0.0), (1, 3)))


def records(directory: Path, kind: type) -> list[object]:
    return [record for record in read_events(directory / "events.jsonl") if isinstance(record, kind)]


def test_a_step_is_measured_over_all_samples() -> None:
    metrics = step_metrics(GROUPS, TRAINING, PUBLICATION)
    assert metrics.reward_mean == approx(2 / 6)
    assert metrics.response_length == approx(24 / 6)
    assert metrics.truncated == approx(1 / 6)
    assert metrics.groups_without_signal == approx(1 / 2)
    assert (metrics.rollout_tokens, metrics.train_tokens, metrics.version) == (24, 50, 4)


def test_groups_that_were_dropped_count_in_what_the_policy_earns() -> None:
    metrics = step_metrics(GROUPS[:1], TRAINING, PUBLICATION, dropped=GROUPS[1:])
    assert metrics == replace(step_metrics(GROUPS, TRAINING, PUBLICATION), groups_dropped=1)


def test_samples_and_groups_that_are_kept_out_of_the_loss_are_counted() -> None:
    all_cut, some_cut = group((1.0, 0.0), (2, 2), truncated=2), group((1.0, 0.0), (2, 2), truncated=1)
    given = tuple(map(masked, (all_cut, some_cut)))
    metrics = step_metrics(given, TRAINING, PUBLICATION, dropped=(masked(all_cut),))
    assert (metrics.samples_masked, metrics.groups_masked) == (3, 1), "of the groups that are trained on"
    assert metrics.groups_without_signal == approx(2 / 3)
    assert (metrics.truncated, metrics.reward_mean, metrics.rollout_tokens) == (approx(5 / 6), 0.5, 12)


def test_prompts_of_agents_are_counted_by_what_engines_had_of_them() -> None:
    (made,) = strange("engine-0", -0.5).group.samples_G
    branches = (Branch((1,), "q", 1, asked_tokens=30, cached_tokens=20), Branch((1,), "q", 0, asked_tokens=10))
    agents = ScoredGroup(
        Group(PROMPT, (replace(made, branches=branches), replace(made, branches=branches[:1]))), (1.0, 0.0)
    )
    assert step_metrics((agents,), TRAINING, PUBLICATION).prefix_hits == approx(40 / 70)
    assert step_metrics(GROUPS, TRAINING, PUBLICATION).prefix_hits is None


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_was_not_measured(value: float) -> None:
    metrics = step_metrics(GROUPS, replace(TRAINING, loss=value), PUBLICATION)
    assert (metrics.loss, metrics.grad_norm) == (None, TRAINING.grad_norm)


PROMPT = Prompt("0:0", "q", "q", (1,), "l", {})


def strange(engine: str, *logprobs: float) -> ScoredGroup:
    sample = Sample((7,) * len(logprobs), logprobs, "", 3, "stop", engine)
    return ScoredGroup(Group(Prompt("0:0", "q", "q", (1,), "l", {}), (sample,)), (1.0,))


def test_log_probabilities_that_are_not_finite_are_counted_and_logged_with_their_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    groups = (*GROUPS, strange("engine-1", -0.5, nan, nan), strange("engine-1", inf), strange("engine-2", -0.5))
    dropped = (strange("engine-3", -inf, inf),)
    run = SyntheticRun(tmp_path)
    run.report.step(1, groups, TRAINING, PUBLICATION, dropped)
    (step,) = records(tmp_path, StepRecord)
    assert isinstance(step, StepRecord) and step.nonfinite_logprobs == 5
    said = [line for line in caplog.messages if "nonfinite" in line]
    assert said == [
        "action=count_nonfinite_logprobs step=1 engine=engine-1 tokens=3",
        "action=count_nonfinite_logprobs step=1 engine=engine-3 tokens=2",
    ]
    assert b"rljob_engine_nonfinite_logprobs_total 5.0" in run.report.render_metrics()[1]


def aged(*versions: tuple[int, int]) -> ScoredGroup:
    """Return a group of one sample whose parts were made by these versions."""
    number = sum(tokens for _, tokens in versions)
    sample = Sample((7,) * number, (0.0,) * number, "", versions[-1][0], "stop", "engine-0", carried=versions)
    return ScoredGroup(Group(Prompt("0:0", "q", "q", (1,), "l", {}), (sample,)), (1.0,))


def test_staleness_is_the_age_of_the_weights_of_each_token_at_the_step_that_trains_on_it() -> None:
    metrics = step_metrics((aged((3, 1), (4, 3)), aged((5, 4))), TRAINING, PUBLICATION, newest=5)
    assert (metrics.staleness, metrics.max_staleness) == (approx((2 + 3 * 1) / 8), 2)


def test_samples_of_one_version_are_as_old_as_it() -> None:
    metrics = step_metrics(GROUPS, TRAINING, PUBLICATION, dropped=(aged((0, 5)),), newest=4)
    assert (metrics.staleness, metrics.max_staleness) == (1.0, 1)


def test_staleness_is_reported_where_rollouts_are_ahead_and_tokens_count_for_the_whole_step(tmp_path: Path) -> None:
    ahead, not_ahead = SyntheticRun(tmp_path / "ahead", ahead=True), SyntheticRun(tmp_path / "not")
    for run in (ahead, not_ahead):
        run.take(1)
    (first,), (other,) = records(tmp_path / "ahead", StepRecord), records(tmp_path / "not", StepRecord)
    assert isinstance(first, StepRecord) and isinstance(other, StepRecord)
    assert (first.staleness, other.staleness) == (0.0, None)
    assert first.rollout_tokens_per_second == approx(first.rollout_tokens / first.seconds)
    assert other.rollout_tokens_per_second == approx(other.rollout_tokens / other.phase_seconds["rollout"])
    page = ahead.report.render_metrics()[1]
    assert b"rljob_staleness_steps 0.0" in page and b"rljob_staleness_max_steps 0.0" in page


def test_what_the_learner_waited_for_is_reported_in_shares_of_the_step(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    for phase, seconds in (("rollout", 2.0), ("train", 3.0), ("publish", 3.0)):
        run._spend(phase, seconds)
    run.report.step(1, GROUPS, TRAINING, replace(PUBLICATION, waited_s=2.0))
    (step,) = records(tmp_path, StepRecord)
    assert isinstance(step, StepRecord)
    assert (step.publish_wait_seconds, step.data_wait) == (2.0, 0.5)
    assert b"rljob_data_wait_ratio 0.5" in run.report.render_metrics()[1]


def test_samples_are_the_best_and_the_worst_of_a_group_and_one_of_a_group_that_agrees() -> None:
    chosen = chosen_samples(GROUPS, 4)
    assert [(sample.response, sample.reward, sample.version) for sample in chosen] == [
        ("r0", 1.0, 3),
        ("r2", 0.0, 3),
        ("r0", 0.0, 3),
    ]


def test_a_step_reaches_every_sink(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path, tensorboard=True)
    run.take(1)
    assert [record.step for record in records(tmp_path, StepRecord)] == [1]  # type: ignore[attr-defined]
    assert run.report.progress().step == 1
    assert b"rljob_step 1.0" in run.report.render_metrics()[1]
    assert list((tmp_path / "tensorboard").iterdir())


def test_what_is_said_of_a_critic_reaches_every_sink(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    critic = LearnerMetrics(value_loss=0.25, value_clip_fraction=0.125, critic_grad_norm=3.0, explained_variance=-0.5)
    run.report.step(1, GROUPS, combined(TRAINING, critic), PUBLICATION)
    run.report.end("finished")
    exposed = run.report.render_metrics()[1].decode().splitlines()
    (step,) = records(tmp_path, StepRecord)
    assert isinstance(step, StepRecord)
    assert {
        "rljob_value_loss 0.25",
        "rljob_value_clip_ratio 0.125",
        "rljob_explained_variance -0.5",
        "rljob_critic_grad_norm 3.0",
    } <= {*exposed}
    assert {(tag, value) for tag, value in scalars(step) if tag.startswith("critic/")} == {
        ("critic/loss", 0.25),
        ("critic/clip_fraction", 0.125),
        ("critic/explained_variance", -0.5),
        ("critic/grad_norm", 3.0),
    }
    assert {"Value loss", "Explained variance of the returns"} <= {
        figure.title for figure in figures(read_history(tmp_path))
    }


def test_nothing_is_said_of_a_critic_where_there_is_none(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.take(1)
    run.report.end("finished")
    (step,) = records(tmp_path, StepRecord)
    assert isinstance(step, StepRecord)
    assert "rljob_value_loss NaN" in run.report.render_metrics()[1].decode()
    assert not [tag for tag, _ in scalars(step) if tag.startswith("critic/")]
    assert "Value loss" not in {figure.title for figure in figures(read_history(tmp_path))}


def test_the_start_is_reported_with_its_time_and_not_counted_to_the_first_step(tmp_path: Path) -> None:
    SyntheticRun(tmp_path).take(1)
    started, ready, first, *_ = read_events(tmp_path / "events.jsonl")
    assert isinstance(started, RunRecord) and isinstance(ready, ReadyRecord) and isinstance(first, StepRecord)
    assert (started.phase_seconds, ready.phase_seconds) == ({"start": approx(6.2)}, {"load": approx(3.1)})
    assert first.seconds == approx(6.3, abs=0.8)


def test_the_manifest_is_reported_with_its_defaults(tmp_path: Path) -> None:
    SyntheticRun(tmp_path)
    (started,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(started, RunRecord)
    assert started.manifest["spec"]["rollout"]["promptsPerStep"] == 16
    assert started.manifest["spec"]["rollout"]["routerPolicy"] == "CacheAware"


def test_without_held_out_questions_no_evaluation_is_reported(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.report.evaluation(0, Accuracy(None, None, 0))
    assert records(tmp_path, EvaluationRecord) == []


def test_accuracies_of_sets_are_reported_in_the_record_and_the_newest_in_the_status(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    hard, easy = Accuracy(0.25, None, 4, failures=1), Accuracy(0.75, 1.0, 2)
    run.report.evaluation(0, Accuracy(0.5, 0.5, 8, failures=1, sets={"hard": easy, "easy": easy}))
    run.report.evaluation(1, Accuracy(0.5, 0.5, 8, failures=1, sets={"hard": hard, "easy": easy}))
    _, record = records(tmp_path, EvaluationRecord)
    assert isinstance(record, EvaluationRecord)
    assert {name: each.model_dump() for name, each in record.sets.items()} == {
        "hard": {"sampled": 0.25, "greedy": None, "n": 4},
        "easy": {"sampled": 0.75, "greedy": 1.0, "n": 2},
    }
    assert run.report.progress().evaluation_sets == {
        "hard": SetAccuracy(step=1, sampled=0.25),
        "easy": SetAccuracy(step=1, sampled=0.75, greedy=1.0),
    }


def test_the_end_has_its_own_time_and_later_records_are_not_written(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.phases.lap()
    run.clock.now += 3.0
    run.report.end("failed", "out of memory")
    run.report.checkpoint(1, tmp_path)
    (end,) = records(tmp_path, EndRecord)
    assert isinstance(end, EndRecord)
    assert (end.outcome, end.message, end.phase_seconds) == ("failed", "out of memory", {"other": approx(3.0)})
    assert records(tmp_path, CheckpointRecord) == []


def test_without_tensorboard_no_directory_is_made(tmp_path: Path) -> None:
    SyntheticRun(tmp_path, tensorboard=False)
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize("steps", [1, 36, 1000, 12345])
def test_samples_of_the_first_the_last_and_a_bounded_number_of_steps_are_kept(steps: int) -> None:
    shown = [step for step in range(1, steps + 1) if shows_samples(step, steps)]
    assert {1, steps} <= set(shown)
    assert len(shown) <= 22


def test_the_synthetic_job_is_a_valid_manifest() -> None:
    assert job().spec.rollout.engines == 2
