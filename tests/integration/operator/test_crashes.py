"""The operator is killed before each of its writes in turn, and started again: it always comes to the same end."""

from collections.abc import Callable

import pytest

import crashing_operator
from fake_head import FakeHeads
from operator_job import Job
from operator_process import OperatorProcess
from waiting import eventually

MORE_THAN_ALL = 60
PROGRAM = (crashing_operator.__file__,)
SAME = "replica"
"""identity of every operator here: it may have the Lease of its predecessor at once"""
CHILDREN = {"RayCluster", "ConfigMap", "Secret", "Service", "NetworkPolicy"}


@pytest.fixture
def heads() -> FakeHeads:
    return FakeHeads(ends_at_once=0)


def kinds(children: set[str]) -> set[str]:
    return {child.partition("/")[0] for child in children}


@pytest.mark.timeout(900)
def test_killed_before_any_write_it_comes_to_the_same_end(
    new_job: Callable, start: Callable, heads: FakeHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashes = 0
    for before in range(1, MORE_THAN_ALL):
        name = f"crash-{before}"
        job = new_job(name)
        monkeypatch.setenv("CRASH_BEFORE", str(before))
        crashing = start(f"crashing-{before}", PROGRAM, SAME)
        crashed = ended_or_succeeded(crashing, job)
        crashing.kill()
        with start(f"calm-{before}", identity=SAME):
            status = job.until("Succeeded")
        assert [attempt["exitCode"] for attempt in status["attempts"]] == [0], before
        assert sum(submission.startswith(f"{name}-") for submission in heads.submissions) == 1, before
        assert kinds(job.children()) >= CHILDREN - {"RayCluster", "ConfigMap"}
        heads.heads.clear()
        job.delete()
        crashes += crashed
        if not crashed:
            break
    assert crashes > 10


def ended_or_succeeded(operator: OperatorProcess, job: Job) -> bool:
    """Return whether the operator was ended by its fuse; otherwise it has done its last write, the last event."""
    eventually(
        lambda: (operator.exit_code, job.events()),
        lambda seen: seen[0] is not None or "Completed" in seen[1],
        deadline_s=120,
    )
    assert operator.exit_code in (None, crashing_operator.BURNT), operator.log
    return operator.exit_code is not None
