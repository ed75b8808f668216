"""A background task that ends by itself ends the process."""

import asyncio
import logging

import pytest

from rljob_operator.runtime import background_tasks
from rljob_operator.runtime.background_tasks import TASK_ENDED, BackgroundTasks


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise KeyError("metadata")


async def ends() -> None:
    return


async def is_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("work", "error"), [(fails, "KeyError('metadata')"), (ends, "None"), (is_cancelled, "None")], ids=lambda each: ""
)
def test_a_task_that_ends_stops_the_process_and_is_named(work, error, caplog):
    async def scenario() -> BackgroundTasks:
        stop = asyncio.Event()
        tasks = BackgroundTasks(stop, die=lambda code: None)
        tasks.start("worker-0", for_ever())
        tasks.start("resync", work())
        await stop.wait()
        await tasks.close(1.0)
        return tasks

    with caplog.at_level(logging.CRITICAL):
        assert asyncio.run(scenario()).failed == "resync"
    assert [record.message for record in caplog.records] == [f"action=end reason=TaskEnded task=resync error={error}"]


def test_a_process_that_does_not_end_in_time_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background_tasks, "END_S", 0.0)

    async def scenario() -> int:
        died: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        BackgroundTasks(asyncio.Event(), die=died.set_result).start("resync", fails())
        return await died

    assert asyncio.run(scenario()) == TASK_ENDED


def test_tasks_that_are_closed_are_no_failure():
    async def scenario() -> tuple[bool, str | None]:
        stop = asyncio.Event()
        tasks = BackgroundTasks(stop)
        tasks.start("resync", for_ever())
        await tasks.close(1.0)
        return stop.is_set(), tasks.failed

    assert asyncio.run(scenario()) == (False, None)
