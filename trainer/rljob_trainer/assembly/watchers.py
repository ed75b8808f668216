"""What runs beside the loop while the run lasts: status updates, recovery without a supervisor, the router's keeper."""

import logging
import os
from collections.abc import Awaitable, Sequence

from rljob_api.control import RAY_ADDRESS
from rljob_api.exits import Exit
from rljob_api.foreign_text import said
from rljob_api.sections import Device
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.stages import Sampling
from rljob_trainer.control.fallback_recovery import FallbackRecovery
from rljob_trainer.control.server import ControlServer
from rljob_trainer.control.stall_watch import StallWatch
from rljob_trainer.control.status_updates import StatusUpdater
from rljob_trainer.gpus.monitor import GpuMonitor
from rljob_trainer.gpus.nodes import RayNodes
from rljob_trainer.learners.group import LearnerGroup

log = logging.getLogger(__name__)


STACKS_S = 5.0
"""longest wait for the stacks of the ranks [s]"""


def start_watchers(foundation: Foundation, sampling: Sampling, server: ControlServer) -> StatusUpdater:
    """Start all watchers but that of the learner; return the one that updates the status."""
    store, report = foundation.status_store, foundation.report
    report.with_losses(foundation.losses.lost)
    updater = StatusUpdater(
        store, report.progress, report.saved, report.findings, sampling.engines, report.engines, foundation.losses
    )
    recovery = FallbackRecovery(
        store, foundation.orders, server.attendance, foundation.spec.recovery, leave=_end_process
    )
    for work in (updater.run(), recovery.run(), *sampling.watchers(), *_gpus(foundation)):
        _start(foundation, work)
    return updater


def watch_learner(foundation: Foundation, learner: LearnerGroup) -> None:
    """Start the watcher that writes the stacks of a loop that stands still, with those of the learner's ranks."""
    store, recovery = foundation.status_store, foundation.spec.recovery
    _start(foundation, StallWatch(store, recovery, foundation.directory, lambda: learner.stacks(STACKS_S)).run())


def _start(foundation: Foundation, work: Awaitable[None]) -> None:
    task = foundation.background.submit(_until_cancelled(work))
    foundation.stack.callback(task.cancel)


def _gpus(foundation: Foundation) -> Sequence[Awaitable[None]]:
    """Return what watches the GPUs; nothing for a run without them."""
    if foundation.spec.runtime.device is not Device.GPU:
        return ()
    # A driver without a Ray cluster starts a Ray on this machine, which has the GPUs that the driver sees.
    local = RAY_ADDRESS not in foundation.environ
    nodes = RayNodes(foundation.environ.get("CUDA_VISIBLE_DEVICES") if local else None)
    foundation.stack.callback(nodes.stop)
    monitor = GpuMonitor(nodes, foundation.report.machine_fault)
    foundation.report.with_gpus(monitor.take)
    return (monitor.run(),)


async def _until_cancelled(work: Awaitable[None]) -> None:
    """Await what must not fail while the run lasts: without it the run would continue unwatched."""
    try:
        await work
    except Exception as error:
        log.exception("action=watch failed")
        _end_process(f"a watcher has failed: {said(error)}")


def _end_process(reason: str) -> None:
    """End this process at once, without cleaning up: the supervisor starts the run again."""
    log.error("action=leave reason=%r", reason)
    os._exit(Exit.LOST_PEER)
