"""Keeps the status store up to date with the report's progress and the engines, several times a second.

Phase and heartbeat are not copied here. The main thread sets them itself, so a live updater cannot mask a dead loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_api import control
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.reporting.losses import Losses

INTERVAL_S = 0.2


@dataclass
class StatusUpdater:
    """Copies the progress, findings and engines to the status store when they have changed."""

    status_store: StatusStore
    progress: Callable[[], control.Progress]
    checkpoint: Callable[[], control.SavedCheckpoint | None]
    """the newest"""
    findings: Callable[[], Sequence[control.Finding]]
    engines: Callable[[], Sequence[control.EngineStatus]]
    count_engines: Callable[[dict[str, int]], None]
    """is called with the number of engines in each state"""
    losses: Losses = field(default_factory=Losses)

    async def run(self) -> None:
        """Update until cancelled."""
        while True:
            self.update()
            await asyncio.sleep(INTERVAL_S)

    def update(self) -> None:
        """Update the status store now."""
        status, engines = self.status_store.status, tuple(self.engines())
        now = {
            "progress": self.progress(),
            "engines": engines,
            "checkpoint": self.checkpoint(),
            "findings": tuple(self.findings()),
            "waits_for": self.losses.waiting_for,
            "waited_seconds": float(int(self.losses.waited_s)),
        }
        changes = {name: value for name, value in now.items() if value != getattr(status, name)}
        if changes:
            self.status_store.update(**changes)
        if "engines" in changes:
            self.count_engines(by_state(engines))


def by_state(engines: Sequence[control.EngineStatus]) -> dict[str, int]:
    """Return how many engines are in each state; every state is named."""
    return {state: sum(engine.state is state for engine in engines) for state in control.EngineState}
