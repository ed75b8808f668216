"""Errors of GPUs become findings at once, by the names of the catalogue."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rljob_api.control import Finding
from rljob_api.sections import Watch
from rljob_doctor.catalogue import catalogue
from rljob_doctor.known import known_failure
from rljob_doctor.scan import scan
from rljob_trainer.gpu_metrics import GpuUse
from rljob_trainer.gpus.monitor import GpuMonitor
from rljob_trainer.gpus.readings import Looked, Reading, Xid
from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.gpu_findings import ecc_finding, throttled, xid_finding
from rljob_trainer.reporting.records import FindingRecord, StepRecord
from rljob_trainer.reporting.tensorboard import scalars
from rljob_trainer.reporting.watch_limits import MOST_SLOWED, Bounds
from support.trainer.synthetic_run import SyntheticRun


@dataclass
class FakeNodes:
    """Nodes that see one thing after the other."""

    looks: list[tuple[Looked, ...]]

    async def look(self) -> tuple[Looked, ...]:
        return self.looks.pop(0)


@dataclass
class Faults:
    """Keeps what is reported."""

    found: list[Finding] = field(default_factory=list)

    def names(self) -> list[str]:
        return [finding.name for finding in self.found]


def xid(number: int, gpu: str = "a:0") -> tuple[Looked, ...]:
    return (Looked(xids=(Xid(gpu, "0000:5d:00", number),)),)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (31, "IllegalMemoryAccess"),
        (95, "GpuMemoryError"),
        (48, "GpuMemoryError"),
        (79, "GpuLost"),
        (74, "GpuLost"),
        (32, "GpuXid"),
    ],
)
def test_an_xid_has_the_name_and_the_remedy_of_the_catalogue(number: int, name: str):
    finding = xid_finding("10.0.0.7:3", "0000:5d:00", number)
    assert finding is not None
    assert finding.evidence == f"GPU 10.0.0.7:3 reported NVRM: Xid (PCI:0000:5d:00): {number}"
    assert (finding.name, catalogue()[name].remedy[0] in finding.advice) == (name, True)


def test_an_unknown_xid_is_reported_and_that_of_a_stopped_process_is_not():
    other, stopped = xid_finding("a:0", "0000:5d:00", 8), xid_finding("a:0", "0000:5d:00", 45)
    assert (other and other.name, stopped) == ("GpuXid", None)


def test_an_error_is_reported_once_for_each_gpu_and_kind():
    faults = Faults()
    looks = [xid(79), xid(79), xid(119), xid(79, "b:0"), xid(45), (Looked((Reading("a:0", ecc_errors=0),)),)]
    monitor = GpuMonitor(FakeNodes([*looks, (Looked((Reading("a:0", ecc_errors=1),)),)]), faults.found.append)
    for _ in range(7):
        asyncio.run(monitor.look())
    assert faults.names() == ["GpuLost", "GpuLost", "GpuMemoryError"]
    assert faults.found[-1] == ecc_finding("a:0", 1)
    assert monitor.take()["a:0"] == GpuUse(xids=(79, 79, 119, 45), ecc_errors=1)


def test_all_nodes_are_gathered():
    looks = (Looked((Reading("a:0", 0.5),)), Looked((Reading("b:0", 0.7),)))
    monitor = GpuMonitor(FakeNodes([looks]), lambda _: None)
    asyncio.run(monitor.look())
    assert monitor.take() == {"a:0": GpuUse(utilisation=0.5), "b:0": GpuUse(utilisation=0.7)}


def test_a_fault_stands_until_the_end_and_is_in_the_events(tmp_path: Path):
    run = SyntheticRun(tmp_path)
    run.take(1)
    finding = xid_finding("a:0", "0000:5d:00", 79)
    assert finding is not None
    run.report.machine_fault(finding)
    run.take(2)
    assert run.report.findings() == (finding,)
    run.report.end("failed")
    (record,) = (each for each in read_events(tmp_path / "events.jsonl") if isinstance(each, FindingRecord))
    assert (record.name, record.step) == ("GpuLost", 1)


def test_the_driver_s_log_leads_the_diagnosis_of_the_attempt_to_the_gpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    finding = xid_finding("a:0", "0000:5d:00", 79)
    assert finding is not None
    SyntheticRun(tmp_path).report.machine_fault(finding)
    known = known_failure([scan("driver", caplog.text.encode())])
    assert (known and known.code) == "GpuLost"


def test_every_gpu_reaches_events_prometheus_and_tensorboard(tmp_path: Path):
    run = SyntheticRun(tmp_path)
    run.take(1)
    text = run.report.render_metrics()[1].decode()
    assert 'rljob_gpu_device_temperature_celsius{gpu="1",node="10.0.0.7"} 61.0' in text
    assert 'rljob_gpu_device_utilisation_ratio{gpu="0",node="10.0.0.7"} 0.7' in text
    assert "rljob_gpu_power_watts 1000.0" in text
    run.report.end("finished")
    (step,) = (each for each in read_events(tmp_path / "events.jsonl") if isinstance(each, StepRecord))
    assert step.gpus["10.0.0.7:1"].temperature == 61.0
    assert dict(scalars(step))["gpu/10.0.0.7:0/memory_bytes"] == 60 << 30
    assert dict(scalars(step))["perf/gpu_temperature"] == 61.0


def test_a_step_without_readings_leaves_the_last_ones_shown(tmp_path: Path):
    run = SyntheticRun(tmp_path)
    run.take(1)
    run.report.with_gpus(dict)
    run.take(2)
    assert 'rljob_gpu_device_power_watts{gpu="0",node="10.0.0.7"} 500.0' in run.report.render_metrics()[1].decode()


def steps(length: int, **gpus: GpuUse) -> list[StepRecord]:
    return [StepRecord(time=1.0, step=number + 1, phase_seconds={}, gpus=gpus) for number in range(length)]


def test_the_slowest_gpu_is_named_with_the_reason():
    slow, slower = GpuUse(hot=0.3), GpuUse(hot=0.1, braked=0.4, temperature=84.0)
    found = throttled(steps(10, a=slow, b=slower), Watch(), Bounds())
    assert found is not None
    assert found.evidence == (
        "GPU b was slowed down in 0.5 of the readings of 10 steps to 10: by heat in 0.1, by its power supply in 0.4;"
        " it was up to 84 °C; limit 0.1"
    )
    assert throttled(steps(9, a=slow), Watch(), Bounds()) is None


def test_a_gpu_is_judged_at_the_limit_and_over_a_whole_window():
    assert throttled(steps(10, a=GpuUse(hot=MOST_SLOWED)), Watch(), Bounds()) is None
    assert throttled(steps(10, a=GpuUse(hot=MOST_SLOWED + 0.01)), Watch(), Bounds()) is not None
    assert throttled([*steps(1, b=GpuUse()), *steps(9, a=GpuUse(hot=1.0))], Watch(), Bounds()) is None
    assert throttled(steps(10), Watch(), Bounds()) is None
