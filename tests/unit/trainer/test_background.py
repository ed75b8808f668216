"""Coroutines beside a synchronous main thread."""

import asyncio

import pytest

from rljob_trainer.background import Background


def test_the_result_of_a_coroutine_comes_back():
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    with Background() as background:
        assert background.run(answer(), timeout_s=5) == 42


def test_a_coroutine_that_misses_its_deadline_is_cancelled():
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with Background() as background, pytest.raises(TimeoutError):
        background.run(hang(), timeout_s=0.1)
    assert cancelled == [True]
