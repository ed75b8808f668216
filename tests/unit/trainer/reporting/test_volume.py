"""What a driver says of the volume of its run."""

import shutil
from math import isnan
from pathlib import Path

from prometheus_client import CollectorRegistry

from rljob_trainer.reporting.records import CheckpointRecord, StepRecord
from rljob_trainer.reporting.volume import VolumeGauges

STEP = StepRecord(time=1.0, step=1, phase_seconds={})


def value(registry: CollectorRegistry, name: str) -> float:
    found = registry.get_sample_value(f"rljob_{name}_bytes")
    assert found is not None
    return found


def test_nothing_is_known_before_the_first_step(tmp_path: Path) -> None:
    VolumeGauges(tmp_path, registry := CollectorRegistry())
    assert all(isnan(value(registry, name)) for name in ("volume", "volume_available", "checkpoint"))


def test_a_step_measures_the_volume(tmp_path: Path) -> None:
    VolumeGauges(tmp_path, registry := CollectorRegistry()).record(STEP)
    assert value(registry, "volume") == shutil.disk_usage(tmp_path).total
    assert 0 < value(registry, "volume_available") <= value(registry, "volume")


def test_a_checkpoint_has_the_size_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "iter_1" / "part").mkdir(parents=True)
    (tmp_path / "iter_1" / "a").write_bytes(b"12345")
    (tmp_path / "iter_1" / "part" / "b").write_bytes(b"123")
    gauges = VolumeGauges(tmp_path, registry := CollectorRegistry())
    gauges.record(CheckpointRecord(time=1.0, step=1, path=str(tmp_path / "iter_1")))
    assert value(registry, "checkpoint") == 8


def test_a_volume_that_cannot_be_read_is_not_measured(tmp_path: Path) -> None:
    gauges = VolumeGauges(tmp_path / "run", registry := CollectorRegistry())
    (tmp_path / "run").mkdir()
    gauges.record(STEP)
    (tmp_path / "run").rmdir()
    gauges.record(STEP)
    assert isnan(value(registry, "volume_available"))
