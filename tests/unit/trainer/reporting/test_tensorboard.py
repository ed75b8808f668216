"""TensorBoard's own reader finds what was written, also after a restart."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from support.trainer.synthetic_run import finished_run


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> EventAccumulator:
    """What TensorBoard reads from a run that died after step 23 and went on from step 20."""
    run = finished_run(tmp_path_factory.mktemp("run"), tensorboard=True)
    accumulator = EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    return accumulator


@pytest.mark.parametrize(
    "tag",
    [
        "train/loss",
        "train/grad_norm",
        "train/learning_rate",
        "train/entropy",
        "train/logprob_mismatch",
        "rollout/reward_mean",
        "rollout/response_length",
        "rollout/truncated",
        "eval/accuracy_sampled",
        "eval/accuracy_greedy",
        "eval/longer/accuracy_sampled",
        "eval/longer/accuracy_greedy",
        "perf/phase_seconds/rollout",
        "perf/phase_seconds/train",
        "perf/data_wait",
        "perf/rollout_tokens_per_second",
        "perf/train_tokens_per_second",
        "weights/version",
    ],
)
def test_a_scalar_is_written(board: EventAccumulator, tag: str) -> None:
    assert tag in board.Tags()["scalars"]


def test_a_resumed_run_shows_each_step_once(board: EventAccumulator) -> None:
    assert [event.step for event in board.Scalars("weights/version")] == list(range(1, 37))


def test_what_was_not_measured_has_no_points(board: EventAccumulator) -> None:
    assert "train/kl" not in board.Tags()["scalars"]


def test_points_carry_the_time_at_which_the_step_ended(board: EventAccumulator, tmp_path: Path) -> None:
    first, last = board.Scalars("rollout/reward_mean")[0], board.Scalars("rollout/reward_mean")[-1]
    assert 200 < last.wall_time - first.wall_time < 400
