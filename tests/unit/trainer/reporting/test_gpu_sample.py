"""Of many GPUs a step keeps ranges, and by name those that stand out; of few GPUs it keeps all."""

from dataclasses import replace
from pathlib import Path

import pytest

from rljob_trainer.gpu_metrics import GpuMetrics, GpuUse, Range
from rljob_trainer.metrics import LearnerMetrics, Publication
from rljob_trainer.reporting.events import read_events
from rljob_trainer.reporting.gpu_sample import MOST_NAMED, sampled
from rljob_trainer.reporting.phases import Phases
from rljob_trainer.reporting.records import StepRecord
from rljob_trainer.reporting.report import open_report
from rljob_trainer.reporting.tensorboard import scalars
from support.trainer.synthetic_run import Clock, job

GPUS = 512
USUAL = GpuUse(utilisation=0.9, memory_bytes=70, memory_total_bytes=80, power_watts=600.0, temperature=60.0)


def fleet(number: int = GPUS, **unusual: GpuUse) -> dict[str, GpuUse]:
    return {f"n{gpu // 8}:{gpu % 8}": USUAL for gpu in range(number)} | {
        name.replace("_", ":"): use for name, use in unusual.items()
    }


def test_all_gpus_of_a_small_run_are_kept():
    assert sampled(fleet(MOST_NAMED)) == (fleet(MOST_NAMED), None)


@pytest.mark.parametrize(
    "change",
    [
        {"xids": (79,)},
        {"ecc_errors": 1},
        {"hot": 0.5},
        {"temperature": 91.0},
        {"utilisation": 0.1},
        {"memory_bytes": 79},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_gpu_that_stands_out_is_kept_by_name(change: dict[str, float]):
    gpus = fleet(n33_5=replace(USUAL, **change))
    kept, summary = sampled(gpus)
    assert kept["n33:5"] == gpus["n33:5"] and summary is not None
    assert len(kept) <= MOST_NAMED


def test_a_run_in_which_every_gpu_is_broken_keeps_a_few_of_them():
    kept, summary = sampled({gpu: replace(use, xids=(79,), hot=1.0) for gpu, use in fleet().items()})
    assert len(kept) <= MOST_NAMED and summary is not None and summary.xids == GPUS


def test_the_ranges_are_those_of_all_gpus():
    _, summary = sampled(fleet(n0_0=replace(USUAL, power_watts=100.0), n0_1=GpuUse()))
    assert summary is not None
    assert (summary.gpus, summary.power_watts) == (
        GPUS,
        Range(least=100.0, mean=pytest.approx((100 + 510 * 600) / 511), most=600.0, number=511),
    )


def test_metrics_of_all_gpus_do_not_depend_on_which_are_kept():
    gpus = fleet(
        n9_1=replace(USUAL, hot=0.25, xids=(31,)), n9_2=GpuUse(ecc_errors=3), n7_7=replace(USUAL, temperature=88.0)
    )
    every, (kept, summary) = GpuMetrics(gpus=gpus), sampled(gpus)
    few = GpuMetrics(gpus=kept, gpu_summary=summary)
    for name in ("utilisation", "memory", "power", "temperature", "throttled", "xids", "ecc_errors"):
        assert getattr(few, f"gpu_{name}") == pytest.approx(getattr(every, f"gpu_{name}")), name


def test_a_step_of_many_gpus_is_small_on_the_disk_and_is_read_back(tmp_path: Path):
    clock = Clock()
    report = open_report(tmp_path, job(), Phases(clock), clock.unix, 1, 0)
    report.with_gpus(fleet)
    clock.now = 1.0
    report.step(1, (), LearnerMetrics(), Publication(1, 1.0, (), {}))
    path = tmp_path / "events.jsonl"
    (step,) = [record for record in read_events(path) if isinstance(record, StepRecord)]
    assert (step.gpu_power, step.gpu_summary and step.gpu_summary.gpus) == (GPUS * 600.0, GPUS)
    assert max(map(len, path.read_bytes().splitlines())) < 10_000
    assert not [tag for tag, _ in scalars(step) if tag.startswith("gpu/")]
