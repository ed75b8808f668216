"""Coroutines beside a synchronous main thread."""

import asyncio

import pytest

from rljob_trainer.processes.background import Background
from support.waiting import others_run


def test_the_result_of_a_coroutine_comes_back():
    async def answer() -> int:
        await others_run()
        return 42

    with Background() as background:
        assert background.run(answer(), timeout_s=None) == 42


def test_a_coroutine_that_misses_its_deadline_is_cancelled():
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with Background() as background, pytest.raises(TimeoutError):
        background.run(hang(), timeout_s=0.1)
    assert cancelled == [True]
