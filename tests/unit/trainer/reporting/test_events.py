"""events.jsonl: whole lines only, each step once, and anything a model can say."""

import errno
import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from rljob_trainer.expert_metrics import ExpertMetrics
from rljob_trainer.gpu_metrics import LostMetrics
from rljob_trainer.reporting.events import EventLog, EventsError, Lost, read_events, rewind
from rljob_trainer.reporting.records import (
    AccuracyRecord,
    EngineRecord,
    EvaluationRecord,
    Record,
    SampleRecord,
    SamplesRecord,
    StepRecord,
)


def step(number: int, loss: float | None = 0.1) -> StepRecord:
    return StepRecord(
        time=100.0 + number,
        step=number,
        reward_mean=0.5,
        response_length=8.0,
        truncated=0.0,
        loss=loss,
        grad_norm=1.0,
        learning_rate=1e-5,
        rollout_tokens=100,
        train_tokens=400,
        version=number,
        phase_seconds={"rollout": 2.0, "train": 1.0},
    )


EARLIER = """
{"reward_mean": 0.5, "reward_std": 0.5, "reward_parts": {"right": 0.25}, "reward_failures": 1,
 "nonfinite_logprobs": 3,
 "groups_without_signal": 0.125, "groups_dropped": 2, "response_length": 7.5, "truncated": 0.0625, "loss": -0.004,
 "grad_norm": 0.75, "learning_rate": 2e-05, "entropy": 1.5, "kl": 0.01, "perplexity": 4.5, "clip_fraction": 0.003,
 "logprob_mismatch": 0.0031, "importance_weight": 1.01, "importance_cut": 0.02, "staleness": 1.25, "max_staleness": 2,
 "value_loss": 0.3, "value_clip_fraction": 0.04, "explained_variance": -0.5, "critic_grad_norm": 2.5, "repeated": 0.1,
 "rollout_tokens": 960, "train_tokens": 5200, "version": 7, "publish_wait_seconds": 0.5, "skipped": 1, "kind": "step",
 "time": 1760000000.0, "step": 7, "phase_seconds": {"rollout": 4.0, "train": 2.0}}
"""
"""a line of a run before metrics had a table"""
LATER = (
    dict.fromkeys(each.name for each in fields(ExpertMetrics))
    | vars(LostMetrics())
    | {
        "gpu_summary": None,
        "groups_masked": 0,
        "prefix_hits": None,
        "samples_masked": 0,
    }
)
"""metrics that there were not yet"""


def failure(number: int) -> EngineRecord:
    return EngineRecord(time=50.0, step=number, engine="engine-0", generation=0, cause="ProcessExited", error="gone")


def written(path: Path, *records: Record) -> Path:
    log = EventLog(path)
    for record in records:
        log.record(record)
    log.close()
    return path


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    records = (step(1), EvaluationRecord(time=2.0, step=1, sampled=0.25, greedy=None, n=8), failure(1))
    assert tuple(read_events(written(tmp_path / "events.jsonl", *records))) == records


def test_a_step_of_an_earlier_version_is_read_to_its_last_field(tmp_path: Path) -> None:
    line = json.loads(EARLIER)
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps(line) + "\n")
    (record,) = read_events(path)
    assert record.model_dump() == {**line, **LATER, "engine_samples": {}, "gpus": {}, "peak_seconds": 0}


def test_a_step_is_written_with_the_names_of_an_earlier_version(tmp_path: Path) -> None:
    assert json.loads(EARLIER).keys() <= json.loads(written(tmp_path / "events.jsonl", step(1)).read_text()).keys()


def test_accuracies_of_sets_come_back_and_records_of_before_have_none(tmp_path: Path) -> None:
    sets = {"hard": AccuracyRecord(sampled=0.125, greedy=None, n=4)}
    both = EvaluationRecord(time=2.0, step=1, sampled=0.25, greedy=None, n=8, sets=sets)
    path = written(tmp_path / "events.jsonl", both)
    assert tuple(read_events(path)) == (both,)
    line = json.loads(path.read_text())
    del line["sets"]
    path.write_text(json.dumps(line) + "\n")
    assert tuple(read_events(path)) == (both.model_copy(update={"sets": {}}),)


def test_a_line_is_readable_before_the_log_is_closed(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "run" / "events.jsonl")
    log.record(step(1))
    assert list(read_events(tmp_path / "run" / "events.jsonl")) == [step(1)]
    log.close()


def test_a_line_is_flat_json_with_kind_and_time(tmp_path: Path) -> None:
    line = json.loads(written(tmp_path / "events.jsonl", step(3)).read_text())
    assert (line["kind"], line["step"], line["time"], line["reward_mean"]) == ("step", 3, 103.0, 0.5)


def test_a_number_that_is_not_finite_becomes_null(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", step(1, loss=float("nan")))
    assert json.loads(path.read_text())["loss"] is None
    assert next(read_events(path)) == step(1, loss=None)


@pytest.mark.parametrize("text", ["line\nbreak", "\x00\x1b[31m\u2028\u0085", "数学 🙂", "lone \ud800 surrogate"])
def test_any_response_fits_on_one_line(tmp_path: Path, text: str) -> None:
    sample = SampleRecord(question="q", response=text, label="l", reward=1.0, version=3)
    record = SamplesRecord(time=1.0, step=1, samples=(sample,))
    assert list(read_events(written(tmp_path / "events.jsonl", record))) == [record]


def test_a_torn_last_line_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", step(1), step(2))
    path.write_bytes(path.read_bytes()[:-20])
    assert list(read_events(path)) == [step(1)]


def test_appending_after_a_torn_line_loses_only_that_line(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", step(1), step(2))
    path.write_bytes(path.read_bytes()[:-20])
    written(path, step(3))
    assert list(read_events(path)) == [step(1), step(3)]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", step(1))
    path.write_bytes(path.read_bytes() + b'{"kind": "step", "step": 2}\n')
    with pytest.raises(EventsError, match=r"events\.jsonl:2: step\.\w+: Field required"):
        list(read_events(path))


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b'{"step": 1}\n', b'"text"\n'])
def test_a_line_that_is_no_record_is_an_error(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "events.jsonl").write_bytes(line)
    with pytest.raises(EventsError, match=r"events\.jsonl:1: not a record"):
        list(read_events(tmp_path / "events.jsonl"))


def test_kinds_and_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", failure(1))
    newer = {**json.loads(path.read_text()), "colour": "red"}
    path.write_text(json.dumps({"kind": "weather", "time": 1.0}) + "\n" + json.dumps(newer) + "\n")
    assert list(read_events(path)) == [failure(1)]


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    path = written(tmp_path / "events.jsonl", step(1), step(2), step(3))
    rewind(path, 2)
    written(path, step(3), step(4))
    assert [record.step for record in read_events(path)] == [1, 2, 3, 4]


def test_rewinding_drops_what_is_done_again_and_says_how_much_that_is(tmp_path: Path) -> None:
    late = EvaluationRecord(time=9.0, step=3, sampled=0.5, greedy=0.5, n=8)
    path = written(tmp_path / "events.jsonl", step(1), step(2), step(3), late, failure(3))
    assert rewind(path, 1) == Lost(steps=2, seconds=6.0)
    assert list(read_events(path)) == [step(1), failure(3)]


def test_rewinding_where_nothing_was_recorded_loses_nothing(tmp_path: Path) -> None:
    assert rewind(tmp_path / "events.jsonl", 0) == Lost(steps=0, seconds=0.0)


@pytest.mark.parametrize("keeps", [True, False], ids=["after the line was written", "before"])
def test_an_error_of_the_volume_costs_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    log, real, failing = EventLog(tmp_path / "events.jsonl"), os.fsync, [True, False, True]

    def fsync(descriptor: int) -> None:
        if failing and failing.pop(0):
            if not keeps:
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - 7)
            raise OSError(errno.ESTALE, "Stale file handle")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for number in range(1, 5):
        log.record(step(number))
    log.close()
    assert [record.step for record in read_events(tmp_path / "events.jsonl")] == [1, 2, 3, 4]


def test_records_that_still_wait_are_written_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        log.record(step(1))
        log.record(step(2))
    log.close()
    assert [record.step for record in read_events(tmp_path / "events.jsonl")] == [1, 2]
