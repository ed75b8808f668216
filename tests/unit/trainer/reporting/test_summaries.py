"""A driver that starts again knows what one that read all events would know, and reads their end alone."""

import json
from pathlib import Path

import pytest

from rljob_api.sections import RLJob
from rljob_trainer.gpu_metrics import GpuUse
from rljob_trainer.private_files import PRIVATE
from rljob_trainer.reporting import summaries
from rljob_trainer.reporting.events import EventLog, last_step, newest_first, read_events, rewind
from rljob_trainer.reporting.progress import ProgressHolder
from rljob_trainer.reporting.records import (
    CheckpointRecord,
    EngineRecord,
    EvaluationRecord,
    Record,
    RunRecord,
    StepRecord,
    SummaryRecord,
)
from rljob_trainer.reporting.summaries import MOST_READ, SUMMARY_EVERY, recall, summary
from rljob_trainer.reporting.watch import AnomalyMonitor, anomaly_monitor
from support.trainer.synthetic_run import job

STEPS = 430
SPEC = job(STEPS).spec


class Run:
    """Records what a run records."""

    def __init__(self, path: Path) -> None:
        self.log, self.progress, self.watching = EventLog(path), ProgressHolder(), anomaly_monitor(SPEC)

    def record(self, record: Record) -> None:
        self.log.record(record)
        self.progress.record(record)

    def do(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            step = a_step(number)
            self.record(step)
            self.watching.after(step)
            if number % 10 == 0:
                self.watching.saved(number)
                self.record(CheckpointRecord(time=step.time, step=number, path=f"iter_{number:07d}"))
            if number % 40 == 0:
                self.record(EvaluationRecord(time=step.time, step=number, sampled=0.5, greedy=None, n=8))
            if number % 90 == 0:
                self.record(failure(number))
            if number % SUMMARY_EVERY == 0:
                self.log.record(summary(self.progress, self.watching, step.time, number))


def a_step(number: int) -> StepRecord:
    return StepRecord(
        time=float(number),
        step=number,
        phase_seconds={"rollout": 0.5 + number % 3, "train": 0.25},
        reward_mean=0.9 if number < 200 else 0.1,
        entropy=1.0 if number < 390 else 0.01,
        loss=0.01,
        grad_norm=1.0,
        skipped=number == 150,
        gpus={"a:0": GpuUse(hot=0.5, temperature=90.0)},
        losses={"Judge": number % 2},
    )


def failure(number: int) -> EngineRecord:
    return EngineRecord(
        time=1.0, step=number, engine="engine-0", generation=number, cause="ProcessExited", error="", return_seconds=3.0
    )


def started(number: int) -> RunRecord:
    return RunRecord(time=0.0, job="j", model="m", task="t", steps=STEPS, attempt=number, step=0, manifest={}, gpus=4)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a run writes."""
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    run = Run(path)
    run.record(started(1))
    run.do(1, STEPS)
    run.log.close()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    return path


def recalled(path: Path, manifest: RLJob | None = None) -> tuple[ProgressHolder, AnomalyMonitor]:
    progress, watching = ProgressHolder(), anomaly_monitor(manifest.spec if manifest else SPEC)
    recall(path, progress, watching)
    return progress, watching


def without_summaries(path: Path) -> Path:
    lines = [line for line in path.read_bytes().splitlines(keepends=True) if b'"kind":"summary"' not in line]
    other = path.with_name("other.jsonl")
    other.write_bytes(b"".join(lines))
    return other


@pytest.mark.parametrize("step", [STEPS, 401, 400, 399, 105, 100, 99, 3])
def test_what_is_recalled_is_what_all_records_say(path: Path, step: int) -> None:
    rewind(path, step)
    progress, watching = recalled(path)
    all_progress, all_watching = recalled(without_summaries(path))
    assert progress.state == all_progress.state
    assert watching.state == all_watching.state
    assert progress.progress.step == step
    more = [a_step(number) for number in range(step + 1, step + 40)]
    assert [watching.after(each) for each in more] == [all_watching.after(each) for each in more]


def test_only_the_end_is_read(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    (place,) = [number for number, line in enumerate(lines) if b'"kind":"step"' in line and b'"step":380' in line]
    path.write_bytes(b"".join([lines[0], *[b"no record\n"] * (place - 1), *lines[place:]]))
    assert last_step(path) == STEPS
    assert rewind(path, 420).steps == 10
    assert recalled(path)[0].progress.step == 420


@pytest.mark.parametrize("change", [{"version": 99}, {"progress": {}}, {"watch": None}])
def test_a_summary_that_cannot_be_used_is_not_used(path: Path, change: dict[str, object]) -> None:
    wanted = recalled(without_summaries(path))
    lines = []
    for line in path.read_bytes().splitlines():
        known = json.loads(line)
        if known["kind"] == "summary":
            known["state"] |= change
        lines.append(json.dumps(known).encode() + b"\n")
    path.write_bytes(b"".join(lines))
    progress, watching = recalled(path)
    assert (progress.state, watching.state) == (wanted[0].state, wanted[1].state)


def test_another_window_is_filled_from_all_records(path: Path) -> None:
    other = job(STEPS)
    other = other.model_copy(
        update={"spec": other.spec.model_copy(update={"watch": other.spec.watch.model_copy(update={"window": 7})})}
    )
    assert recalled(path, other)[1].state == recalled(without_summaries(path), other)[1].state


def test_events_of_an_earlier_version_are_read_from_the_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "MOST_READ", 50)
    wanted = recalled(path)[0].state
    assert recalled(without_summaries(path))[0].state == wanted


def test_events_that_this_version_has_begun_are_not_written_anew(path: Path) -> None:
    path.chmod(PRIVATE)
    before = path.stat()
    rewind(path, STEPS)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)


def test_a_rewind_drops_the_summaries_of_later_steps(path: Path) -> None:
    rewind(path, 250)
    assert [each.step for each in read_events(path) if isinstance(each, SummaryRecord)] == [100, 200]
    assert MOST_READ > 10 * SUMMARY_EVERY


def test_a_rewind_keeps_a_checkpoint_that_was_complete_later_than_the_next_step(tmp_path: Path) -> None:
    run = Run(tmp_path / "events.jsonl")
    late = CheckpointRecord(time=3.0, step=1, path="iter_0000001")
    for record in (a_step(1), a_step(2), late, failure(2), a_step(3)):
        run.log.record(record)
    rewind(tmp_path / "events.jsonl", 1)
    assert list(read_events(tmp_path / "events.jsonl")) == [a_step(1), late, failure(2)]


def test_a_rewind_that_is_cut_off_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "replace", full)
        rewind(path, 100)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


@pytest.mark.parametrize("block", [1, 7, 64, 4096])
def test_records_from_the_end_are_those_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("rljob_trainer.reporting.events.BLOCK", block)
    path, lines = (
        tmp_path / "events.jsonl",
        [each.model_dump_json().encode() + b"\n" for each in (started(1), a_step(1), failure(1))],
    )
    for torn in (b"", b'{"kind":"st'):
        path.write_bytes(b"".join(lines) + torn)
        found = list(newest_first(path))
        assert [record for record, _, _ in reversed(found)] == list(read_events(path))
        assert [path.read_bytes()[begin:end] for _, begin, end in reversed(found)] == lines
        assert last_step(path) == 1
    path.write_bytes(b"torn")
    assert list(newest_first(path)) == []
