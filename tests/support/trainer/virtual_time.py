"""An event loop whose clock jumps to the next timer when nothing else is left to do: tests wait for nothing."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        self.now += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at 0 s. Not for sockets: their timeouts would all be over at once."""

    def __init__(self) -> None:
        self._selector_clock = _JumpingSelector()
        super().__init__(self._selector_clock)

    def time(self) -> float:
        return self._selector_clock.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in a loop of its own, and return its result; what goes wrong in a callback is an error, too."""
    trouble: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: trouble.append(context))
        result = runner.run(work)
    assert trouble == []
    return result


class VirtualBackground:
    """Stands where `processes.background.Background` does: its loop goes on only while somebody waits for it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.timeouts: list[float | None] = []

    def time(self) -> float:
        return self._runner.get_loop().time()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        self.timeouts.append(timeout_s)
        return self._runner.run(asyncio.wait_for(work, timeout_s))

    def close(self) -> None:
        self._runner.close()
