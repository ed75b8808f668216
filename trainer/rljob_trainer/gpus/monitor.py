"""Gathers what the GPUs of all nodes do, and reports errors at once: a step with a broken GPU often never ends."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from rljob_api.control import Finding
from rljob_trainer.gpu_metrics import GpuUse
from rljob_trainer.gpus.readings import Gathered, Looked
from rljob_trainer.reporting.gpu_findings import ecc_finding, xid_finding

log = logging.getLogger(__name__)

INTERVAL_S = 5.0


class Nodes(Protocol):
    """The GPUs of all nodes: `nodes.RayNodes`; a protocol for the fake of tests, which have no Ray."""

    def look(self) -> Awaitable[tuple[Looked, ...]]:
        """Return what each node's reader sees; a node that does not answer is left out."""


class GpuMonitor:
    """Looks at the GPUs every few seconds while `run` runs; `take` may be called from another thread."""

    def __init__(self, nodes: Nodes, fault: Callable[[Finding], None]) -> None:
        """`fault` is called when a GPU reports an error of a kind that it has not reported yet."""
        self._nodes = nodes
        self._fault = fault
        self._gathered = Gathered()
        self._lock = threading.Lock()
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Look once at all GPUs."""
        for looked in await self._nodes.look():
            with self._lock:
                new_errors = self._gathered.add(looked)
            for xid in looked.xids:
                self._report(xid.gpu, xid_finding(xid.gpu, xid.bus, xid.number))
            for gpu, errors in new_errors.items():
                self._report(gpu, ecc_finding(gpu, errors))

    def take(self) -> Mapping[str, GpuUse]:
        """Return each GPU's use since the last call."""
        with self._lock:
            return self._gathered.take()

    def _report(self, gpu: str, finding: Finding | None) -> None:
        if finding is not None and (gpu, finding.name) not in self._reported:
            self._reported.add((gpu, finding.name))
            self._fault(finding)
