"""An operator that is gone after each of its writes, and started again, takes a job through all that can happen."""

from collections.abc import Callable

import pytest

from local_cluster.kubectl import Kubectl
from support.operator import crashing_operator
from support.operator.fake_head import FakeHeads
from support.operator.kept_alive import kept_alive
from support.operator.operator_job import Job
from support.waiting import eventually

LONG_S = 240.0


@pytest.mark.timeout(900)
def test_dying_after_every_write_it_takes_a_job_through_its_whole_life(
    kubectl: Kubectl, new_job: Callable[..., Job], start: Callable, heads: FakeHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRASH_BEFORE", "2")
    mortal = lambda number: start(f"mortal-{number}", (crashing_operator.__file__,), "replica")  # noqa: E731
    with kept_alive(mortal, pause_s=0.1) as lives:
        new_job("wrong", checkpoint={"directory": "/not/shared"}).until("Admitted", "False", LONG_S)
        job = new_job(scheduling={"ttlSecondsAfterFinished": 5})
        job.until("Training", deadline_s=LONG_S)
        head = heads.head(job.namespace)
        head.end(5)
        eventually(lambda: len(heads.submissions), lambda count: count == 2, LONG_S)
        head.end(5)
        eventually(lambda: len(heads.submissions), lambda count: count == 3, LONG_S)
        job.until("Training", deadline_s=LONG_S)
        job.patch('{"suspend":true}')
        eventually(lambda: job.raw()["status"]["phase"], lambda phase: phase == "Suspended", LONG_S)
        eventually(job.pods, lambda pods: not pods)
        job.patch('{"suspend":false}')
        eventually(lambda: len(heads.submissions), lambda count: count == 4, LONG_S)
        job.until("Training", deadline_s=LONG_S)
        ended = eventually(lambda: job.raw()["status"], lambda status: len(status["attempts"]) == 4)
        head.end(0)
        eventually(lambda: kubectl.names("rljob", "-n", job.namespace), lambda names: names == ["wrong"], LONG_S)
    assert [attempt.get("exitCode") for attempt in ended["attempts"]] == [5, 5, 7, None]
    assert len({attempt["cluster"] for attempt in ended["attempts"]}) == 3
    assert [name.rpartition("-")[2] for name in heads.submissions] == ["1", "2", "3", "4"]
    eventually(job.children, lambda children: not children)
    assert lives.count > 20
