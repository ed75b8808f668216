"""A run that is ready for its loop, and how it ends: what the driver calls once everything has started."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from rljob_api import control
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.control.orders import OrderBook
from rljob_trainer.control.status_updates import StatusUpdater
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.parts import Parts
from rljob_trainer.reporting.reading.html import write_report

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """The loop's parts and steps, and what follows the loop."""

    parts: Parts
    first: int
    steps: int
    foundation: Foundation
    learner: LearnerGroup
    updater: StatusUpdater
    regrouping: "Callable[[Run, Exception], Run]"
    """begins again with new ranks of the learner; raises the error where that is impossible"""

    @property
    def orders(self) -> OrderBook:
        return self.foundation.orders

    def again(self, error: Exception) -> "Run":
        """Return the run with a learner that can go on after the error that ended the loop. Raises the error."""
        return self.regrouping(self, error)

    def finish(self, finished: bool) -> None:
        """Export the weights and write the report; `finished`: all steps were taken."""
        with self.foundation.phases.measure("stop"):
            if finished and self.foundation.spec.checkpoint.hf_export:
                with self.parts.gpu_sharing.saving():
                    self.learner.write_hf(self.foundation.directory / "hf")
        _end_report(self.foundation, "finished" if finished else "stopped", "")
        self.updater.update()  # it shows the last step before the end, after which supervisors stop polling
        evicted = self.foundation.status_store.status.eviction
        drained = f"drained: {evicted}" if evicted else "drained"
        reason = "all steps done" if finished else drained
        self.foundation.status_store.update(state=control.RunState.FINISHED, exit_reason=reason)

    def fail(self, error: Exception) -> None:
        """Report the error that ended the loop, while the control server still runs."""
        fail(self.foundation, error)


def fail(foundation: Foundation, error: Exception) -> None:
    """Report the error that ends the run."""
    message = f"{type(error).__name__}: {error}"
    foundation.status_store.update(state=control.RunState.FAILED, exit_reason=message)
    _end_report(foundation, "failed", message)


def _end_report(foundation: Foundation, outcome: str, message: str) -> None:
    try:
        foundation.report.end(outcome, message)
        write_report(foundation.directory)
    except Exception:  # a full disk, for example: how the run itself ended is what counts
        log.exception("action=report failed")
