"""When the stacks of a run that has stopped are written, and what the status says of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rljob_api.control import EngineState, EngineStatus, Progress, RunState, Status
from rljob_api.sections import Recovery
from rljob_trainer.control.stall_watch import StallWatch, summary
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.processes.stacks import Frame, Stacks, place, text, thread_stacks

LEARNERS = "/opt/rljob_trainer/learners/rank/rank.py"
TRAIN, REDUCE = Frame(LEARNERS, 120, "train"), Frame("/torch/distributed_c10d.py", 2806, "all_reduce")
ACTOR = Frame("/opt/rljob_trainer/learners/group.py", 70, "call")
STAYS = [Frame("/opt/rljob_trainer/learners/group.py", 80, "stay"), Frame("/python/threading.py", 320, "wait")]


def rank(*stack: Frame) -> Stacks:
    return {"stay 1": STAYS, "Thread-2 2": [ACTOR, *stack]}


class Run:
    """A driver with two ranks, whose main thread beat last at 1000."""

    def __init__(self, directory: Path, **changes: object) -> None:
        (directory / "logs").mkdir(exist_ok=True)
        self.now = 1000.0
        engine = EngineStatus(name="engine-0", state=EngineState.HEALTHY, since=1.0)
        progress = Progress(step=3, steps=10, last_step_seconds={"train": 1.0})
        known = {"heartbeat": 1000.0, "phase": "train", "engines": (engine,), "progress": progress, "attempt": 2}
        self.store = StatusStore(Status(**{**known, **changes}), clock=lambda: self.now)
        self.asked = 0
        self.watch = StallWatch(self.store, Recovery(), directory, self.stacks, clock=lambda: self.now)
        self.file = directory / "logs/stacks-attempt-2.log"

    def stacks(self) -> Sequence[Stacks | None]:
        self.asked += 1
        return [rank(TRAIN, REDUCE), None]

    def look_at(self, now: float) -> str | None:
        self.now = now
        self.watch.look()
        return self.store.status.stacks


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_stacks_are_written_before_a_supervisor_ends_the_run(run: Run) -> None:
    assert run.look_at(1048.0) is None
    line = run.look_at(1048.5)
    assert line is not None
    assert line.endswith(
        "; rank 0: train (rank.py:120) in all_reduce (distributed_c10d.py:2806); rank 1: does not answer; "
        "stacks in logs/stacks-attempt-2.log"
    )
    written = run.file.read_text()
    assert written.startswith("no progress for 48 s in phase train\n==== driver\n---- ")
    assert "---- MainThread" in written
    assert "==== rank 0\n" in written
    assert f"  {LEARNERS}:120 train\n" in written
    assert written.endswith("==== rank 1\ndoes not answer\n")


def test_the_stacks_of_one_stall_are_written_once(run: Run) -> None:
    for now in (1049.0, 1051.0, 1100.0):
        run.look_at(now)
    assert run.asked == 1


def test_a_run_that_continues_forgets_its_stacks_and_may_stall_again(run: Run) -> None:
    run.look_at(1049.0)
    run.store.beat()
    assert run.look_at(1050.0) is None
    assert run.look_at(1099.0) is not None
    assert run.asked == 2


@pytest.mark.parametrize("changes", [{"state": RunState.FINISHED}, {"state": RunState.FAILED}, {"heartbeat": 0.0}])
def test_a_run_that_has_ended_or_not_begun_is_not_stalled(tmp_path: Path, changes: dict[str, object]) -> None:
    run = Run(tmp_path, **changes)
    assert run.look_at(9999.0) is None


def test_a_volume_that_cannot_be_written_does_not_end_the_watch(run: Run) -> None:
    run.file.mkdir()
    line = run.look_at(1049.0)
    assert line is not None
    assert "rank 1: does not answer; cannot write logs/stacks-attempt-2.log" in line


def test_the_rank_that_stands_elsewhere_is_named_first() -> None:
    ranks = [rank(TRAIN, REDUCE)] * 9 + [rank(TRAIN)]
    assert summary({"MainThread 1": [TRAIN]}, ranks) == (
        "driver: train (rank.py:120); rank 9: train (rank.py:120); "
        "ranks 0, 1, 2, 3, 4, 5, 6, 7, …: train (rank.py:120) in all_reduce (distributed_c10d.py:2806)"
    )


@pytest.mark.parametrize(
    ("stacks", "where"),
    [
        (None, "does not answer"),
        ({"stay 1": STAYS}, "idle"),
        ({"x 1": [REDUCE]}, "idle"),
        (rank(), "call (group.py:70)"),
    ],
)
def test_a_process_stands_where_the_project_s_code_is_deepest(stacks: Stacks | None, where: str) -> None:
    assert place(stacks) == where


def test_the_stacks_of_this_process_have_this_test() -> None:
    main = next(stack for name, stack in thread_stacks().items() if name.startswith("MainThread"))
    assert "test_the_stacks_of_this_process_have_this_test" in [frame.function for frame in main]
    assert "test_stall_watch.py" in text("driver", {"MainThread 1": main})
