"""What is sent to Weights & Biases, read back from the files that it writes without a network."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wandb.errors import AuthenticationError, CommError
from wandb.proto.wandb_internal_pb2 import Record as WandbRecord

import rljob_trainer.reporting.weights_and_biases as sink
from rljob_api.reading.manifest import load
from rljob_api.sections import Wandb, WandbMode
from rljob_trainer.reporting.errors import TrackingError
from rljob_trainer.reporting.records import EndRecord, EvaluationRecord, StepRecord
from rljob_trainer.reporting.weights_and_biases import WeightsAndBiases
from support.api.bad_manifests import table

JOB = load(table()["good"].replace("  reward:\n", "  runtime: {env: {PLAIN: s3cr3t}}\n  reward:\n"))
OFFLINE = Wandb(project="sums", group="tiny", tags=("a", "b"), mode=WandbMode.OFFLINE)
BLOCK, HEADER = 32768, 7
END = EndRecord(time=9.0, step=2, outcome="finished")


def step(number: int, loss: float) -> StepRecord:
    return StepRecord(
        time=1.0 * number, step=number, phase_seconds={"train": 2.0}, reward_mean=0.5, response_length=3.0,
        truncated=None, loss=loss, grad_norm=1.0, learning_rate=1e-5, rollout_tokens=10, train_tokens=20, version=1,
    )  # fmt: skip


def written(directory: Path) -> list[list[Any]]:
    """Return the records of each offline run, oldest first: files in the format of LevelDB's log."""
    files = sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))
    return [[WandbRecord.FromString(content) for content in contents(file.read_bytes()[HEADER:])] for file in files]


def contents(data: bytes) -> Iterator[bytes]:
    whole, at = b"", 0
    while at + HEADER <= len(data):
        room = BLOCK - (at + HEADER) % BLOCK  # the file's own header is part of its first block
        if room < HEADER:
            at += room
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def history(records: list[Any]) -> list[dict[str, Any]]:
    """Return what was logged."""
    rows = [record.history for record in records if record.HasField("history")]
    return [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in rows]


def track(directory: Path, *records: Any, settings: Wandb = OFFLINE) -> None:
    opened = WeightsAndBiases(directory, JOB, settings)
    for record in records:
        opened.record(record)
    opened.close()


def test_steps_and_evaluations_are_written_under_tensorboard_s_names(tmp_path: Path) -> None:
    track(tmp_path, step(1, 0.75), EvaluationRecord(time=2.0, step=1, sampled=0.25, greedy=0.5, n=8), step(2, 0.5), END)
    (records,) = written(tmp_path)
    first, evaluation, second = history(records)
    assert (first["step"], first["train/loss"], first["rollout/reward_mean"]) == (1, 0.75, 0.5)
    assert first["perf/phase_seconds/train"] == 2.0
    assert (evaluation["step"], evaluation["eval/accuracy_sampled"], evaluation["eval/accuracy_greedy"]) == (
        1,
        0.25,
        0.5,
    )
    assert (second["step"], second["train/loss"]) == (2, 0.5)
    assert "rollout/truncated" not in first


def test_the_run_has_the_job_s_name_manifest_and_place(tmp_path: Path) -> None:
    track(tmp_path, step(1, 0.75), END)
    (records,) = written(tmp_path)
    (run,) = [record.run for record in records if record.HasField("run")]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.run_group, run.display_name, list(run.tags)) == ("sums", "tiny", "arithmetic", ["a", "b"])
    assert config["spec"]["model"]["checkpoint"] == "models/qwen3-0.6b"
    assert "s3cr3t" not in json.dumps(config)


def test_all_attempts_of_a_run_are_one_run(tmp_path: Path) -> None:
    track(tmp_path, step(1, 0.75))
    track(tmp_path, step(1, 0.75), step(2, 0.5), END)
    ids = [[each.run.run_id for each in records if each.HasField("run")] for records in written(tmp_path)]
    assert ids == [[(tmp_path / "wandb-id").read_text()]] * 2


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("stopped", 0), ("failed", 1)])
def test_the_end_is_reported(tmp_path: Path, outcome: str, code: int) -> None:
    track(tmp_path, step(1, 0.75), END.model_copy(update={"outcome": outcome}))
    (records,) = written(tmp_path)
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [code]


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch):
    """Let the server answer with an error; what is written without one is as always."""
    init = sink.wandb.init

    def answering(error: Exception) -> None:
        def asked(**given: Any) -> Any:
            if given["mode"] == "online":
                raise error
            return init(**given)

        monkeypatch.setattr(sink.wandb, "init", asked)

    return answering


def test_a_wrong_key_is_reported_before_anything_starts(tmp_path: Path, refuses) -> None:
    refuses(AuthenticationError("API key is invalid"))
    with pytest.raises(TrackingError, match=r"spec.tracking.wandb: API key is invalid"):
        track(tmp_path, settings=Wandb(project="sums", mode=WandbMode.ONLINE))


def test_a_server_that_does_not_answer_keeps_nobody_from_training(tmp_path: Path, refuses, caplog) -> None:
    refuses(CommError("no route to host"))
    track(tmp_path, step(1, 0.75), END, settings=Wandb(project="sums", mode=WandbMode.ONLINE))
    (records,) = written(tmp_path)
    assert [row["train/loss"] for row in history(records)] == [0.75]
    assert "no route to host" in caplog.text


def test_a_key_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0123\n")
    assert sink.key(str(tmp_path / "key")) == "0123"
    with pytest.raises(TrackingError, match=r"spec.tracking.wandb.apiKeyFile .*absent: cannot be read: No such file"):
        sink.key(str(tmp_path / "absent"))
