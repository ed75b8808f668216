"""The driver restarts its engines itself while neither operator nor `rljob run` polls its status.

The policy is the same (`rljob_api.recovery`), and orders go through the same book. A supervisor that returns finds
them in the status and repeats none.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rljob_api.control import DecidedBy, EngineOrder
from rljob_api.recovery import BACKOFF, Backoff, Exhausted, RestartDriver, RestartEngine, decide, history_of
from rljob_api.sections import Recovery
from rljob_trainer.control.orders import OrderBook
from rljob_trainer.control.server import Attendance
from rljob_trainer.control.status_store import StatusStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FallbackRecovery:
    """Applies the recovery policy after `grace_seconds` without a poll."""

    status_store: StatusStore
    orders: OrderBook
    attendance: Attendance
    recovery: Recovery
    leave: Callable[[str], None]
    """ends the driver when it cannot continue, so that its supervisor can restart it; gets the reason"""
    backoff: Backoff = BACKOFF

    async def run(self, interval_s: float = 1.0) -> None:
        """Apply the policy until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.look(time.time())

    def look(self, now: float) -> None:
        """Apply the policy at `now` [unix s], unless a supervisor polls."""
        if self.attendance.absent_s < self.recovery.grace_seconds:
            return
        status = self.status_store.status
        for order in decide(status.engines, history_of(status), self.recovery, now, self.backoff):
            match order:
                case RestartEngine(engine, generation, reason):
                    wanted = EngineOrder(generation=generation, desired="Running", reason=reason)
                    self.orders.engine(engine, wanted, by=DecidedBy.DRIVER)
                case Exhausted(engine, reason):
                    log.debug("action=leave engine=%s reason=%r", engine, reason)
                case RestartDriver(reason):
                    self.leave(reason)
