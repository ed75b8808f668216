"""The first stage: what every later stage stands on, before anything starts that can take long or fail."""

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_api.sections import RLJob, Spec
from rljob_api.sizing.topology import Topology, topology
from rljob_trainer.control.orders import OrderBook
from rljob_trainer.control.status_store import StatusStore
from rljob_trainer.engines.commands import PoolCommands
from rljob_trainer.processes import leftovers
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import TRIES, Losses, Outage
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.report import Report, open_report, weights_and_biases
from rljob_trainer.rundir.cores import make_place
from rljob_trainer.rundir.fence import Fence
from rljob_trainer.rundir.resume import Start
from rljob_trainer.rundir.retries import Patience

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Foundation:
    """Where a run writes, reports, takes orders and does its background work."""

    job: RLJob
    fence: Fence
    environ: Mapping[str, str]
    stack: ExitStack
    """stops everything, in reverse order"""
    status_store: StatusStore
    phases: Phases
    background: Background
    commands: PoolCommands
    orders: OrderBook
    report: Report
    topology: Topology
    losses: Losses
    """what the world outside costs the run"""
    patience: Patience
    """with the volume of the run's directory"""

    @property
    def spec(self) -> Spec:
        return self.job.spec

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self.fence.directory

    def outage(self, what: str, tries: int = TRIES) -> Outage:
        """Return what distinguishes an outage of a service from failures of single requests; `what` names it."""
        beat, longest_s = self.status_store.beat, self.spec.recovery.outage_seconds
        has_worked = self.report.progress().step > 0
        return Outage(what, self.losses, longest_s, tries, has_worked, beat)

    @property
    def run_id(self) -> str:
        """The same for every attempt in this directory."""
        return leftovers.run_id(self.directory)


def lay(
    job: RLJob,
    fence: Fence,
    environ: Mapping[str, str],
    stack: ExitStack,
    status_store: StatusStore,
    phases: Phases,
    losses: Losses,
    patience: Patience,
    first: int,
) -> Foundation:
    """Open the report at step `first`, and connect the order book to the engines there will be."""
    if job.spec.debug.cuda_launch_blocking:
        make_place(fence.directory)
    background = stack.enter_context(Background())
    commands = PoolCommands(background)
    return Foundation(
        job=job,
        fence=replace(fence, patience=patience),
        environ=environ,
        stack=stack,
        status_store=status_store,
        phases=phases,
        background=background,
        commands=commands,
        orders=OrderBook(status_store, commands.restart, commands.scale),
        report=open_report(fence.directory, job, phases, time.time, fence.mine.attempt, first),
        topology=topology(job.spec),
        losses=losses,
        patience=patience,
    )


def report_start(foundation: Foundation, start: Start) -> None:
    """Log and report where the run begins, and what was wrong with newer checkpoints."""
    log.info("action=begin start=%r", str(start))
    if start.found or start.aside:
        foundation.status_store.update(began=str(start))
    for finding in start.findings:
        foundation.report.found(finding, start.step)


def track(foundation: Foundation) -> None:
    """Report to Weights & Biases too, if the manifest asks for it."""
    wandb = foundation.spec.tracking.wandb
    if wandb is not None:
        foundation.report.also_to(weights_and_biases(foundation.directory, foundation.job, wandb))
