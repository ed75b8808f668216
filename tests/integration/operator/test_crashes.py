"""The operator is killed before each of its writes in turn, and started again: it always comes to the same end."""

from collections.abc import Callable

import pytest

from support.operator import crashing_operator
from support.operator.fake_head import FakeHeads
from support.operator.operator_job import Job
from support.operator.operator_process import OperatorProcess
from support.waiting import eventually

MORE_THAN_ALL = 60
PROGRAM = (crashing_operator.__file__,)
SAME = "replica"
"""identity of every operator here: it may have the Lease of its predecessor at once"""


@pytest.fixture
def heads() -> FakeHeads:
    return FakeHeads(ends_at_once=0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.long)])
def test_killed_before_any_write_it_comes_to_the_same_end(
    new_job: Callable, start: Callable, heads: FakeHeads, monkeypatch: pytest.MonkeyPatch, apart: int
) -> None:
    crashes = 0
    for before in range(1, MORE_THAN_ALL, apart):
        name = f"crash-{before}"
        job = new_job(name)
        monkeypatch.setenv("CRASH_BEFORE", str(before))
        crashing = start(f"crashing-{before}", PROGRAM, SAME)
        crashed = ended_or_succeeded(crashing, job)
        crashing.kill()
        with start(f"calm-{before}", identity=SAME):
            status = job.until("Succeeded")
            eventually(job.children, lambda children: not children)
        assert [attempt["exitCode"] for attempt in status["attempts"]] == [0], before
        assert sum(submission.startswith(f"{name}-") for submission in heads.submissions) == 1, before
        heads.heads.clear()
        job.delete()
        crashes += crashed
        if not crashed:
            break
    assert crashes > 10 // apart


def ended_or_succeeded(operator: OperatorProcess, job: Job) -> bool:
    """Return whether the operator was ended by its fuse; otherwise it has done its last write, the last deletion."""
    eventually(
        lambda: (operator.exit_code, job.events(), job.children()),
        lambda seen: seen[0] is not None or ("Completed" in seen[1] and not seen[2]),
        deadline_s=120,
    )
    assert operator.exit_code in (None, crashing_operator.BURNT), operator.log
    return operator.exit_code is not None
