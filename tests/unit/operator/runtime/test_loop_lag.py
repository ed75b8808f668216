"""How long the event loop stood still."""

import asyncio

import pytest

from rljob_operator.runtime import loop_lag
from rljob_operator.runtime.loop_lag import LoopLag
from support.waiting import becomes_true


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_longest_stop_is_shown_for_a_minute_and_then_the_longest_since():
    clock = Clock()
    lag = LoopLag(clock)
    assert lag.worst_s == 0.0
    seen = []
    for clock.now, stop_s in ((0.0, 0.1), (10.0, 3.0), (20.0, 0.2), (30.0, 0.5), (70.0, 0.0), (71.0, 0.0), (91.0, 0.0)):
        lag.note(stop_s)
        seen.append(lag.worst_s)
    assert seen == [0.1, 3.0, 3.0, 3.0, 3.0, 0.5, 0.0]


def test_a_loop_that_stands_still_is_seen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop_lag, "TICK_S", 0.0)

    async def scenario() -> float:
        clock = Clock()
        lag = LoopLag(clock)
        watching = asyncio.create_task(lag.watch())
        asyncio.get_running_loop().call_soon(setattr, clock, "now", 3.0)  # something takes so long
        await becomes_true(lambda: lag.worst_s > 0)
        watching.cancel()
        return lag.worst_s

    assert asyncio.run(scenario()) == 3.0
