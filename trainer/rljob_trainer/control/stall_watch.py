"""Writes the stacks of the driver and the ranks when the main thread stops, before a supervisor ends the run.

logs/stacks-attempt-N.log     all stacks
status.stacks                 where each stands, in a line; the supervisor repeats it as the reason of the end
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rljob_api.control import STACKS_LOG, RunState
from rljob_api.recovery import stall_deadline_s
from rljob_api.sections import Recovery
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.private_files import appended
from rljob_trainer.processes.stacks import Stacks, place, text, thread_stacks

log = logging.getLogger(__name__)

SHARE = 0.8
"""of the time without a sign of life after which a supervisor ends the run"""
INTERVAL_S = 2.0
MOST_RANKS = 8
"""in the line; all are in the file"""


@dataclass
class StallWatch:
    """Looks at the heartbeat of the main thread."""

    status_store: StatusStore
    recovery: Recovery
    directory: Path
    rank_stacks: Callable[[], Sequence[Stacks | None]]
    """of all ranks of the learner; None: a rank does not answer. Blocks for some seconds"""
    clock: Callable[[], float] = time.time
    _written_at: float = field(default=0.0, init=False)
    """heartbeat at which the stacks were written"""

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(INTERVAL_S)

    def look(self) -> None:
        """Write the stacks if the main thread has stopped, once; forget them when it continues."""
        status = self.status_store.status
        if self._written_at and status.heartbeat != self._written_at:
            self._written_at = 0.0
            self.status_store.update(stacks=None)
        if self._written_at or not status.heartbeat or status.state in (RunState.FINISHED, RunState.FAILED):
            return
        silent_s = self.clock() - status.heartbeat
        if silent_s > SHARE * stall_deadline_s(status, self.recovery):
            self._written_at = status.heartbeat
            self.status_store.update(stacks=self._write(status.attempt, status.phase, silent_s))

    def _write(self, attempt: int, phase: str, silent_s: float) -> str:
        """Write the stacks into the log of this attempt; return where all stand."""
        driver, ranks = thread_stacks(), self.rank_stacks()
        file = STACKS_LOG.format(attempt=attempt)
        titled = [("driver", driver), *((f"rank {rank}", stacks) for rank, stacks in enumerate(ranks))]
        head = f"no progress for {silent_s:.0f} s in phase {phase}\n"
        where = summary(driver, ranks)
        log.error("action=stall phase=%s silent_s=%.0f where=%r file=%s", phase, silent_s, where, file)
        try:
            with appended(self.directory / file) as stacks_log:
                stacks_log.write((head + "".join(text(title, stacks) for title, stacks in titled)).encode())
        except OSError as error:  # a volume that hangs or is full may be the cause of the stall
            return f"{where}; cannot write {file}: {error}"
        return f"{where}; stacks in {file}"


def summary(driver: Stacks, ranks: Sequence[Stacks | None]) -> str:
    """Return where the driver's main thread and each rank stand; ranks at the same place are named together."""
    main = {name: stack for name, stack in driver.items() if name.startswith("MainThread")}
    at: dict[str, list[int]] = {}
    for rank, stacks in enumerate(ranks):
        at.setdefault(place(stacks), []).append(rank)
    # The smallest groups first: the rank that stands elsewhere is the one that the others wait for.
    groups = sorted(at.items(), key=lambda item: len(item[1]))
    return "; ".join([f"driver: {place(main)}", *(f"{_ranks(ranks)}: {where}" for where, ranks in groups)])


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_RANKS])) + (", …" if len(ranks) > MOST_RANKS else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
