"""The driver looks after its engines itself while neither operator nor `rljob run` asks for its status.

The policy is the same (`rljob_api.recovery`), and orders go through the same door, so a supervisor that comes back
finds them in the status and gives none twice.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from rljob_api.control import EngineOrder
from rljob_api.recovery import BACKOFF, Backoff, Exhausted, RestartDriver, RestartEngine, decide, history_of
from rljob_api.sections import Recovery
from rljob_trainer.board import StatusBoard
from rljob_trainer.control import Attendance
from rljob_trainer.desired import Desired

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SelfCare:
    """Applies the recovery policy after `grace_seconds` without a poll."""

    board: StatusBoard
    desired: Desired
    attendance: Attendance
    recovery: Recovery
    leave: Callable[[str], None]
    """ends the driver, which cannot go on, so that something else can start it again; is given the reason"""
    backoff: Backoff = BACKOFF

    async def run(self, interval_s: float = 1.0) -> None:
        """Look after the engines until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.look(time.time())

    def look(self, now: float) -> None:
        """Do what is due at `now` [unix s], if nobody else looks after the engines."""
        if self.attendance.absent_s < self.recovery.grace_seconds:
            return
        status = self.board.status
        for order in decide(status.engines, history_of(status), self.recovery, now, self.backoff):
            match order:
                case RestartEngine(engine, generation, reason):
                    wanted = EngineOrder(generation=generation, desired="Running", reason=reason)
                    self.desired.engine(engine, wanted, by="driver")
                case Exhausted(engine, reason):
                    log.debug("action=leave engine=%s reason=%r", engine, reason)
                case RestartDriver(reason):
                    self.leave(reason)
