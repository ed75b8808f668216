"""Publication while engines generate for later steps: requests drain first, then the weights change.

    close the gate ─► requests end, or are cut off ─► publish as always ─► open the gate

Weights may be published less often than they change; the engines keep their version until then.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from rljob_trainer.metrics import Publication
from rljob_trainer.sync.weights import EngineWeights

CUT_S = 10.0
"""longest time for requests to end that were cut off [s]; the publication itself then finds the engine that hangs"""
AGAIN_S = 0.1
"""between two cuts: the first misses requests that have not arrived yet [s]"""


class Door(Protocol):
    """What requests pass on their way to engines: `engines.gate.Gate`, or `gateway.client.Gateways`."""

    async def close(self) -> None:
        """Admit no further request."""

    async def emptied(self, timeout_s: float | None = None) -> bool:
        """Wait until no request is inside, at most `timeout_s` [s]; return whether that is the case."""

    async def open(self) -> None:
        """Admit requests again."""


@dataclass
class GatedWeights:
    """Publishes weights while rollouts run."""

    weights: EngineWeights
    gate: Door
    due: Callable[[int], bool]
    """whether a version is to be published"""
    cut: Callable[[], Awaitable[None]] | None
    """aborts running requests, which keep their tokens; None: publication waits for them"""
    clock: Callable[[], float] = time.monotonic
    _published: Publication | None = None
    _version: int = -1
    """of the learner's weights"""

    def publish(self, version: int) -> Publication:
        """Bring the learner's weights to every engine if they are due; return what the engines hold."""
        self._version = version
        if self._published is None or self.due(version):
            return self._publish(version)
        return replace(self._published, seconds=0.0, parts={}, waited_s=0.0)

    def rescue(self) -> None:
        """Publish at once if no engine serves and the learner no longer has the weights that engines are to hold.

        Otherwise the loop would wait for samples for ever: engines that return could not get those weights.
        """
        behind = self._published is not None and self._published.version < self._version
        if behind and not self.weights.pool.serving_urls():
            self._publish(self._version)

    def _publish(self, version: int) -> Publication:
        run = self.weights.background.run
        began = self.clock()
        run(self._emptied(), timeout_s=None)
        waited_s = self.clock() - began
        try:
            self._published = replace(self.weights.publish(version), waited_s=waited_s)
        finally:
            run(self.gate.open(), timeout_s=None)
        return self._published

    async def _emptied(self) -> None:
        """Return when all requests have drained. Each has its own deadline, and fails with its engine."""
        await self.gate.close()
        if self.cut is None:
            await self.gate.emptied()
            return
        deadline = self.clock() + CUT_S
        while self.clock() < deadline:
            await self.cut()
            if await self.gate.emptied(AGAIN_S):
                return
