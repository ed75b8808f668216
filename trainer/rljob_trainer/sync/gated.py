"""Publication while engines generate for later steps: requests come out first, then the weights change.

    close the gate ─► what runs is answered, or cut off where it is ─► publish as always ─► open the gate

Weights may be published more rarely than they change; until then the engines' version stays what it was.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from rljob_trainer.engines.gate import Gate
from rljob_trainer.metrics import Publication
from rljob_trainer.sync.weights import EngineWeights

CUT_S = 10.0
"""longest time for engines to answer what was cut off [s]; then the publication itself finds out which of them hangs"""
AGAIN_S = 0.1
"""between two cuts: a request on its way is missed by the first [s]"""


@dataclass
class GatedWeights:
    """The loop's weights where rollouts go on while it trains."""

    weights: EngineWeights
    gate: Gate
    due: Callable[[int], bool]
    """whether a version is to be published"""
    cut: Callable[[], Awaitable[None]] | None
    """ends what the engines generate, as it is; None: it is waited for"""
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

        Who waits for samples then would wait for ever: engines that come back could not get those weights.
        """
        behind = self._published is not None and self._published.version < self._version
        if behind and not self.weights.pool.serving_urls():
            self._publish(self._version)

    def _publish(self, version: int) -> Publication:
        run = self.weights.background.run
        began = time.monotonic()
        run(self._emptied(), timeout_s=None)
        waited_s = time.monotonic() - began
        try:
            self._published = replace(self.weights.publish(version), waited_s=waited_s)
        finally:
            run(self._opened(), timeout_s=CUT_S)
        return self._published

    async def _emptied(self) -> None:
        """Return when no request is behind the gate. Each has a deadline of its own, and fails with its engine."""
        self.gate.close()
        if self.cut is None:
            await self.gate.emptied()
            return
        deadline = time.monotonic() + CUT_S
        while time.monotonic() < deadline:
            await self.cut()
            if await self.gate.emptied(AGAIN_S):
                return

    async def _opened(self) -> None:
        self.gate.open()
