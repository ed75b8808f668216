"""Continues after a rank of the learner is gone, with new ranks: this process, Ray, router and engines stay.

    lost rank ─► the other ranks end ─► journal, report and data go back to the newest checkpoint
              ─► new ranks on the same slots, which load it ─► its weights are published ─► the loop continues

It takes the time in which ranks start and load. If that cannot be done here, the error ends the attempt, and a
supervisor starts another one.
"""

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from rljob_api.control import Finding
from rljob_api.foreign_text import said
from rljob_api.sections import Device, Placement, Spec
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.run import Run
from rljob_trainer.assembly.stages import Sampling
from rljob_trainer.engines.placement import Slots
from rljob_trainer.learners.errors import LearnerError, LearnerLostError, LearnerStalledError
from rljob_trainer.rundir.resume import Start, begin
from rljob_trainer.sync.transport import TransferError

log = logging.getLogger(__name__)

OF_LOST_RANKS = (LearnerLostError, LearnerError, LearnerStalledError, TransferError)
"""what those raise who wait for a rank that is gone, or for others that wait for it"""
NODE = re.compile(r"\s*ip: \S+\s*")
"""the line that names it in what Ray says of an actor that died"""
NOTICED_S = 5.0
"""within which Ray reports that a process is gone [s]"""


def possible(spec: Spec) -> bool:
    """Return whether new ranks find room while engines run: beside engines on the same GPUs they do not."""
    shares = spec.runtime.device is Device.GPU and spec.placement is Placement.COLOCATED
    return spec.has_engines and spec.debug.learner and not shares


@dataclass
class Regrouping:
    """Begins the run again at its newest checkpoint. Once for each checkpoint: a rank that is lost again before there
    is a newer one has a reason that new ranks do not mend."""

    foundation: Foundation
    """what lasts as long as the run, with the stack of what lasts as long as one learner"""
    sampling: Sampling
    slots: Slots
    start: Callable[[Start], Run]
    """starts learner and loop at a checkpoint"""
    last: int = -1
    """step at which it has begun again last"""

    def __call__(self, run: Run, error: Exception) -> Run:
        """Return the run with new ranks. Raises the error that ended the loop if they would not help."""
        may_be = isinstance(error, OF_LOST_RANKS) and possible(self.foundation.spec)
        if not (may_be and run.learner.lost(NOTICED_S)):
            raise error
        foundation, began = self.foundation, time.monotonic()
        with foundation.phases.measure("start"):
            log.error("action=regroup reason=%s", said(error))
            self.sampling.learner_is_gone()
            run.parts.checkpoints.settle()
            foundation.stack.close()
            found = self._newest(error)
            foundation.report.run(foundation.fence.mine.attempt, found.step)
            for each in found.findings:
                foundation.report.found(each, found.step)
            again = self.start(found)
        seconds = time.monotonic() - began
        foundation.report.found(finding(error, found, seconds), found.step)
        foundation.status_store.update(began=f"continues with new ranks of the learner, {found}: {cause(error)}")
        log.info("action=regroup outcome=done seconds=%.1f step=%d", seconds, found.step)
        return again

    def _newest(self, error: Exception) -> Start:
        """Return where to begin again. Raises the error if that was tried there, or if a machine is gone."""
        foundation = self.foundation
        found = begin(
            foundation.directory, foundation.spec.checkpoint, foundation.fence.mine.origin, foundation.patience
        )
        if found.step <= self.last:
            log.error("action=regroup outcome=refused reason='step %d was tried already'", found.step)
            raise error
        if not self.slots.are_reserved(rank.slot for rank in foundation.topology.learner):
            log.error("action=regroup outcome=refused reason='the machine of a rank is gone'")
            raise error
        self.last = found.step
        return found


def cause(error: Exception) -> str:
    """Return the error in a line, with the node of which Ray tells lines further down."""
    first, *others = str(error).splitlines() or [""]
    node = next((f" (node {line.split()[1]})" for line in others if NODE.fullmatch(line)), "")
    return f"{said(type(error)(first))}{node}"


def finding(error: Exception, found: Start, seconds: float) -> Finding:
    """Return that a rank was lost, and what it cost."""
    return Finding(
        name="LostRank",
        evidence=f"{cause(error)}; new ranks began after {seconds:.0f} s, and the run {found}; engines continued",
        advice="look for the end of the process: memory of its node (OOMKilled), messages of its GPU, its log",
    )
