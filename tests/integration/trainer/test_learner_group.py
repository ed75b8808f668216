"""The driver's handle on ranks in real Ray actors: one answer for all, and no waiting for a rank that is gone."""

import math
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import ray

from learner_data import learner_config, sequences
from rljob_trainer.background import Background
from rljob_trainer.batches import StepBatch
from rljob_trainer.learners.config import layout
from rljob_trainer.learners.group import LearnerError, LearnerGroup, LearnerLostError, TrainingDivergedError
from rljob_trainer.learners.rank import LearnerRank
from rljob_trainer.packing import pack

WORLD = 2


class Rank(LearnerRank):
    """A rank that also says which process it is."""

    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    support = str(Path(__file__).parents[2] / "support")
    packages = os.pathsep.join([os.environ.get("PYTHONPATH", ""), support, str(Path(__file__).parent)])
    environment = {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    yield
    ray.shutdown()


@pytest.fixture
def group(cluster: None, tiny_llama_dir: Path) -> Iterator[LearnerGroup]:
    config = learner_config(tiny_llama_dir, tensor_parallel=2)
    made = LearnerGroup(
        partial(Rank, config), [{"num_cpus": 0}] * WORLD, layout(config, WORLD), timeout_s=60.0, max_skipped=0
    )
    made.start()
    yield made
    made.stop()


def step(seed: int, **changes: float) -> StepBatch:
    samples = [replace(sample, **changes) for sample in sequences(6, seed)]
    return StepBatch(pack(samples, 1, 64), len(samples), sum(len(each.tokens) for each in samples))


def on_policy_loss(batch: StepBatch) -> float:
    """Return the loss where every probability ratio is 1."""
    micro_batches = [each for share in batch.micro_batches_by_rank for each in share]
    return -sum(float((each.weights_R * each.advantages_R).sum()) for each in micro_batches)


def test_two_steps_of_one_rollout_use_the_probabilities_before_the_first(group: LearnerGroup) -> None:
    assert group.train([step(2)]).loss == pytest.approx(on_policy_loss(step(2)), abs=1e-6)
    metrics = group.train([step(0), step(1)])
    on_policy = (on_policy_loss(step(0)) + on_policy_loss(step(1))) / 2
    assert abs(metrics.loss - on_policy) > 1e-5, "the second step's ratio is to the policy before the first"
    assert metrics.skipped == 0
    assert metrics.tokens == step(0).tokens + step(1).tokens
    assert group.call("pid")[0] != group.call("pid")[1]


def test_more_skipped_steps_than_allowed_are_an_error(group: LearnerGroup) -> None:
    with pytest.raises(TrainingDivergedError, match="maxSkippedSteps allows 0"):
        group.train([step(0, advantage=math.nan)])


def test_an_error_in_the_ranks_comes_back_with_its_traceback(group: LearnerGroup, tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"(?s)learner rank \d: .*checkpoint\.py"):
        group.load(tmp_path / "absent")


def test_a_rank_that_is_killed_is_noticed_by_those_who_wait_for_something_else(group: LearnerGroup) -> None:
    with Background() as background:
        watching = background.submit(group.watch())
        group.train([step(0)])
        group.check()
        os.kill(group.call("pid")[1], signal.SIGKILL)
        watching.result(timeout=30)
    with pytest.raises(LearnerLostError, match="learner rank 1: its process is gone"):
        group.check()


def test_a_rank_that_is_killed_ends_the_wait_at_once(group: LearnerGroup) -> None:
    os.kill(group.call("pid")[1], signal.SIGKILL)
    with pytest.raises(LearnerLostError, match="learner rank"):
        group.train([step(0)])
