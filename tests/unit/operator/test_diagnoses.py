"""Evidence of failures is read beside the event loop, and no attempt waits for that for long."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from rljob_api.known_failure import KnownFailure
from rljob_operator import diagnoses
from rljob_operator.attempts.diagnosis import MOST_TEXT, Evidence
from rljob_operator.diagnoses import Diagnoses
from rljob_operator.plan import Plan
from rljob_operator.world.world import DriverState
from support.operator.operator_world import Surroundings, running

MEMORY = Evidence("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "")
SLOW = "import sys, time; sys.stdin.readline(); time.sleep(600)"
WRONG = "import sys; sys.stdin.readline(); print('[' * 100_000, flush=True)"
GONE = "import sys; sys.stdin.readline()"


def found(evidence: Evidence, *more: Evidence) -> list[KnownFailure | None]:
    """Return what is found in each evidence, each of another job."""

    async def scenario() -> list[KnownFailure | None]:
        left, done = {f"ml/job-{number}" for number in range(1 + len(more))}, asyncio.Event()

        def changed(key: str) -> None:
            left.discard(key)
            if not left:
                done.set()

        reading = Diagnoses(changed)
        for number, each in enumerate((evidence, *more)):
            reading.ask(f"ml/job-{number}", 1, each)
            reading.ask(f"ml/job-{number}", 1, Evidence("later evidence", ""))
        await done.wait()
        results = [reading.found(f"ml/job-{number}")[1] for number in range(1 + len(more))]
        await reading.close()
        return results

    return asyncio.run(scenario())


def test_another_process_reads_the_evidence_of_one_attempt_after_the_other() -> None:
    memory, nothing = found(MEMORY, Evidence("all is well", ""))
    assert memory is not None and memory.code == "TrainOutOfMemory"
    assert nothing is None


@pytest.mark.parametrize("program", [SLOW, WRONG, GONE])
def test_a_reader_that_does_not_answer_delays_an_end_for_a_limited_time(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnoses, "READER", (sys.executable, "-c", program))
    monkeypatch.setattr(diagnoses, "READ_S", 2.0)
    assert found(MEMORY, MEMORY) == [None, None]


def test_a_job_that_is_gone_is_not_told_anything() -> None:
    async def scenario() -> list[str]:
        told: list[str] = []
        reading = Diagnoses(told.append)
        reading.ask("ml/gone", 1, MEMORY)
        reading.forget("ml/gone")
        await reading.close()
        return told

    assert asyncio.run(scenario()) == []


def failed() -> Surroundings:
    """A job whose driver has failed, and whose evidence was not read."""
    around = Surroundings().to_running()
    around.runs(running())
    around.driver(state=DriverState.FAILED, exit_code=1, message=MEMORY.driver)
    around.observed = replace(around.observed, diagnosed={})
    return around


def test_nothing_is_planned_for_an_attempt_that_has_ended_until_its_evidence_was_read() -> None:
    todo = failed().plan()
    assert todo.diagnose is not None and MEMORY.driver in todo.diagnose.driver
    assert replace(todo, diagnose=None) == Plan(attempt=1)


@pytest.mark.parametrize("result", [None, KnownFailure("TrainOutOfMemory", "title", "remedy", "driver: line")])
def test_the_attempt_ends_with_what_was_read(result: KnownFailure | None) -> None:
    around = failed()
    around.observed = replace(around.observed, diagnosed={1: result})
    around.step()
    (first, *_) = around.status["attempts"]
    assert first["exitCode"] == 1
    assert first.get("failure", {}).get("code") == (result.code if result else None)


def test_a_result_of_an_older_attempt_is_not_taken_for_this_one() -> None:
    around = failed()
    around.observed = replace(around.observed, diagnosed={7: None})
    assert around.plan().diagnose is not None


@pytest.mark.parametrize(
    "end",
    [lambda around: around.driver(state=DriverState.SUCCEEDED, exit_code=0)],
)
def test_an_end_in_order_waits_for_nothing(end: Callable[[Surroundings], object]) -> None:
    around = failed()
    end(around)
    assert around.plan().diagnose is None


def test_of_what_pods_say_the_end_is_read() -> None:
    around = failed()
    lines = tuple(f"pod {number} {'x' * 4000}" for number in range(64))
    around.observed = replace(around.observed, pods=tuple(replace(pod, trouble=lines) for pod in around.observed.pods))
    todo = around.plan()
    assert todo.diagnose is not None and len(todo.diagnose.pods) == MOST_TEXT
