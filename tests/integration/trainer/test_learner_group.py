"""The driver's handle on ranks in real Ray actors: one answer for all, and no waiting for a rank that is gone."""

import math
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
import xxhash

from rljob_api.sizing.parallel_layout import ParallelLayout
from rljob_trainer.batches.batches import StepBatch
from rljob_trainer.batches.packing import Packing, pack
from rljob_trainer.learners import group as group_module
from rljob_trainer.learners.config import layout
from rljob_trainer.learners.errors import LearnerError, LearnerLostError, LearnerStalledError, TrainingDivergedError
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.learners.rank.rank import LearnerRank
from rljob_trainer.learners.rank_calls import Written
from rljob_trainer.processes.background import Background
from rljob_trainer.processes.stacks import place
from support.trainer.falling_rank import FallingRank
from support.trainer.learner_data import RANKS_S, learner_config, sequences
from support.waiting import until

WORLD = 2


LET_GO = "let-go"
"""a file beside a checkpoint's directory: rank 1 writes when it is there"""


class Rank(LearnerRank):
    """A rank that also says which process it is, and waits before it writes where it is asked to."""

    def pid(self) -> int:
        return os.getpid()

    def hold(self, until_there: Path | None) -> None:
        self._until_there = until_there if self.rank == 1 else None

    def write_staged(self) -> Written:
        if held := getattr(self, "_until_there", None):
            until(held.exists)
        return super().write_staged()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    support = str(Path(__file__).parents[2])
    packages = os.pathsep.join([os.environ.get("PYTHONPATH", ""), support, str(Path(__file__).parent)])
    environment = {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def group(cluster: None, tiny_llama_dir: Path) -> Iterator[LearnerGroup]:
    with ranks(tiny_llama_dir) as made:
        yield made


@contextmanager
def started(make: Callable[..., Any], spread: ParallelLayout, still_s: float = RANKS_S) -> Iterator[LearnerGroup]:
    made = LearnerGroup(make, [{"num_cpus": 0}] * WORLD, spread, timeout_s=RANKS_S, max_skipped=0, still_s=still_s)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def ranks(checkpoint: Path, still_s: float = RANKS_S) -> AbstractContextManager[LearnerGroup]:
    config = learner_config(checkpoint, tensor=2)
    return started(partial(Rank, config), layout(config, WORLD), still_s)


def step(seed: int, **changes: float) -> StepBatch:
    samples = [replace(sample, **changes) for sample in sequences(6, seed)]
    return StepBatch(pack(samples, Packing(1, 64)), len(samples), sum(len(each.tokens) for each in samples))


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
    assert metrics.train_tokens == step(0).tokens + step(1).tokens
    assert group.call(Rank.pid)[0] != group.call(Rank.pid)[1]


def test_training_goes_on_while_a_checkpoint_is_written(
    group: LearnerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, let_go = tmp_path / "checkpoint", tmp_path / LET_GO
    checkpoint.mkdir()
    group.call(Rank.hold, let_go)
    group.stage(checkpoint)
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(group.write)
        try:
            metrics = group.train([step(3)])
            assert not writing.done()
        finally:
            let_go.touch()
        digests = writing.result(60)
    written = checkpoint / "__1_0.distcp"
    assert digests[written.name] == xxhash.xxh3_128_hexdigest(written.read_bytes())
    beats: list[None] = []
    monkeypatch.setattr(group_module, "LOOK_S", 0.0)
    group.load(checkpoint, lambda: beats.append(None))
    assert beats, "bytes have moved"
    again = group.train([step(3)])
    assert (again.loss, again.grad_norm) == (metrics.loss, metrics.grad_norm), "the state was that of before the step"


def test_more_skipped_steps_than_allowed_are_an_error(group: LearnerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "_skips", group._skips)  # other tests of this group may come later
    with pytest.raises(TrainingDivergedError, match="maxSkippedSteps allows 0"):
        group.train([step(0, advantage=math.nan)])


def test_ranks_that_write_nothing_are_given_up_with_their_numbers(
    cluster: None, tiny_llama_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "LOOK_S", 0.2)
    with ranks(tiny_llama_dir, still_s=1.0) as group:
        group.call(Rank.hold, tmp_path / LET_GO)
        group.stage(tmp_path)
        with pytest.raises(
            LearnerStalledError, match=r"ranks \[1\] should write a checkpoint, and moved no byte for 1 s"
        ):
            group.write()


def test_an_error_in_the_ranks_comes_back_with_its_traceback(group: LearnerGroup, tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"(?s)learner rank \d: .*checkpoint\.py"):
        group.load(tmp_path / "absent")


def test_a_rank_that_is_killed_is_noticed_by_those_who_wait_for_something_else(
    cluster: None, tiny_llama_dir: Path
) -> None:
    with ranks(tiny_llama_dir) as group:
        with Background() as background:
            watching = background.submit(group.watch())
            group.train([step(0)])
            group.check()
            os.kill(group.call(Rank.pid)[1], signal.SIGKILL)
            watching.result(timeout=30)
        with pytest.raises(LearnerLostError, match="learner rank 1: its process is gone"):
            group.check()
        with pytest.raises(LearnerLostError, match="learner rank"):
            group.train([step(0)])


@pytest.mark.parametrize("others", ["hang", "fail"])
def test_a_rank_that_is_killed_ends_the_wait_whatever_the_others_do(cluster: None, others: str) -> None:
    with (
        started(FallingRank, ParallelLayout(tensor=WORLD, pipeline=1, data=1)) as group,
        pytest.raises(LearnerLostError, match=r"learner rank 1: its process is gone: [^\n]+\Z"),
    ):
        group.call(getattr(FallingRank, others))


def test_the_stacks_of_the_ranks_show_who_hangs_while_the_others_wait_for_it(cluster: None) -> None:
    with started(FallingRank, ParallelLayout(tensor=WORLD, pipeline=1, data=1)) as group, ThreadPoolExecutor() as pool:
        waiting = pool.submit(group.call, FallingRank.stick)
        until(lambda: "in stick (falling_rank.py:" in place(group.stacks(5.0)[1]))
        assert place(group.stacks(5.0)[0]) == "idle"
        waiting.result(timeout=30)
