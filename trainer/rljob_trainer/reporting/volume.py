"""The volume of a run's directory, for Prometheus: its size, what is free, and what a checkpoint takes of it.

Measured when a step or a checkpoint is recorded, by the thread that writes events to the same volume. A scrape does not
look: it would wait for a volume that is away.
"""

import logging
import shutil
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from rljob_trainer.reporting.records import CheckpointRecord, ReadyRecord, Record, StepRecord

log = logging.getLogger(__name__)

NOT_MEASURED = float("nan")


class VolumeGauges:
    """The gauges of one driver; NaN until they are measured, and while the volume cannot be read."""

    def __init__(self, directory: Path, registry: CollectorRegistry) -> None:
        self._directory = directory
        self._size = Gauge("rljob_volume_bytes", "Size of the volume with the run's directory", registry=registry)
        self._available = Gauge(
            "rljob_volume_available_bytes", "What the run may still write to the volume", registry=registry
        )
        self._checkpoint = Gauge("rljob_checkpoint_bytes", "Size of the last checkpoint", registry=registry)
        for gauge in (self._size, self._available, self._checkpoint):
            gauge.set(NOT_MEASURED)

    def record(self, record: Record) -> None:
        match record:
            case ReadyRecord() | StepRecord():
                self._measure_room()
            case CheckpointRecord():
                self._measure_room()
                self._measure_checkpoint(Path(record.path))

    def _measure_room(self) -> None:
        try:
            found = shutil.disk_usage(self._directory)
        except OSError as error:
            log.warning("action=measure_volume outcome=lost reason=%r", error.strerror)
            self._size.set(NOT_MEASURED)
            self._available.set(NOT_MEASURED)
            return
        self._size.set(found.total)
        self._available.set(found.free)

    def _measure_checkpoint(self, path: Path) -> None:
        try:
            self._checkpoint.set(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
        except OSError as error:  # it is deleted when newer ones are there
            log.warning("action=measure_checkpoint path=%s outcome=lost reason=%r", path, error.strerror)
