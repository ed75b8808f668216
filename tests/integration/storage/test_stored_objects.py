"""Models and questions of a real S3 server: downloaded once, whole, resumed after cuts; and what errors say."""

import json
import os
import random
from pathlib import Path

import pytest
import yaml

from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob, Source
from rljob_trainer.assembly.downloads import recorded_revisions, with_local_files
from rljob_trainer.data.hub import SMALL, hub_of
from rljob_trainer.data.stored_objects import Objects, cached, fetched
from rljob_trainer.preflight.downloads import download
from rljob_trainer.remote.errors import ChangedError, NotThereError, RemoteAwayError, RemoteError
from rljob_trainer.remote.stores import reader_of, store_of
from rljob_trainer.remote.transfer import Transfer
from support.operator.operator_world import raw_job
from support.trainer.s3_server import CuttingProxy, S3Server

MODEL, QUESTIONS = "s3://bucket/models/tiny/", "s3://bucket/data/train.jsonl"
ROWS = b'{"question": "1+1", "answer": "2"}\n'
WEIGHTS = random.Random(0).randbytes(5_000_000)


@pytest.fixture
def job() -> RLJob:
    wanted = load(yaml.safe_dump(raw_job()))
    data = wanted.spec.data.model_copy(update={"train": Source(jsonl=QUESTIONS), "held_out": None})
    model = wanted.spec.model.model_copy(update={"checkpoint": MODEL})
    return wanted.model_copy(update={"spec": wanted.spec.model_copy(update={"model": model, "data": data})})


@pytest.fixture
def bucket(server: S3Server) -> Path:
    """A bucket with a model, and questions."""
    made = server.bucket("bucket")
    files = {
        "models/tiny/config.json": b"{}",
        "models/tiny/model.safetensors": WEIGHTS,
        "models/tiny/consolidated.safetensors": b"another format",
        "models/tiny/original/params.json": b"another format",
        "data/train.jsonl": ROWS,
    }
    for name, content in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    return made


def objects(cache: Path, **changed: str) -> Objects:
    return Objects(cache / "objects", lambda url: reader_of(url, {**os.environ, **changed}), longest_s=2.0)


def placed(job: RLJob, directory: Path, *, resumes: bool) -> RLJob:
    directory.mkdir(exist_ok=True)
    sources = hub_of({}, directory), objects(directory)
    return with_local_files(job, *sources, directory, resumes, lambda: None)


def test_a_manifest_with_urls_becomes_one_with_whole_files(bucket: Path, job: RLJob, tmp_path: Path) -> None:
    spec = placed(job, tmp_path / "run", resumes=False).spec
    model = Path(spec.model.checkpoint)
    assert {path.name: path.stat().st_size for path in model.iterdir()} == {
        "config.json": 2,
        "model.safetensors": len(WEIGHTS),
    }
    assert (model / "model.safetensors").read_bytes() == WEIGHTS
    assert Path(str(spec.data.train.jsonl)).read_bytes() == ROWS
    assert Path(str(spec.data.train.jsonl)).name == "train.jsonl"
    assert set(recorded_revisions(tmp_path / "run")) == {MODEL, QUESTIONS}


def test_a_run_that_resumes_uses_what_it_began_with_without_the_server(
    server: S3Server, bucket: Path, job: RLJob, tmp_path: Path
) -> None:
    first = placed(job, tmp_path / "run", resumes=False)
    (bucket / "data/train.jsonl").write_bytes(b"other\n")
    anew = placed(job, tmp_path / "other", resumes=False)
    assert Path(str(anew.spec.data.train.jsonl)).read_bytes() == b"other\n"
    server.stop()
    assert placed(job, tmp_path / "run", resumes=True) == first


def test_a_resume_refuses_content_that_is_not_what_the_run_began_with(bucket: Path, job: RLJob, tmp_path: Path) -> None:
    began = placed(job, tmp_path / "run", resumes=False)
    (bucket / "data/train.jsonl").write_bytes(b"other\n")
    Path(str(began.spec.data.train.jsonl)).unlink()
    with pytest.raises(ChangedError, match=f"{QUESTIONS}: has changed since the run began.*put the old content back"):
        placed(job, tmp_path / "run", resumes=True)


def test_checks_before_a_start_leave_the_weights_where_they_are(bucket: Path, tmp_path: Path) -> None:
    there = fetched(objects(tmp_path), MODEL, is_model=True, patterns=SMALL)
    assert [path.name for path in there.iterdir()] == ["config.json"]
    assert cached(objects(tmp_path), MODEL, is_model=True) == there
    assert fetched(objects(tmp_path), MODEL, is_model=True) == there
    assert (there / "model.safetensors").read_bytes() == WEIGHTS


def test_cut_connections_cost_only_the_pieces_that_they_carried(
    bucket: Path, proxy: CuttingProxy, server: S3Server, tmp_path: Path
) -> None:
    store = reader_of(MODEL, server.environ(proxy.port))
    transfer = Transfer(store, piece_bytes=500_000, pause=lambda _: None)
    item = transfer.item(MODEL + "model.safetensors")
    proxy.cuts, proxy.after = 5, 300_000
    transfer.fetch(item, tmp_path / "weights")
    assert proxy.cuts == 0
    assert (tmp_path / "weights").read_bytes() == WEIGHTS
    assert proxy.passed < len(WEIGHTS) + 5 * 500_000 + 100_000
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("weights")) == ["weights"]


def test_a_download_that_was_given_up_continues_where_it_stopped(
    server: S3Server, bucket: Path, tmp_path: Path
) -> None:
    store = reader_of(MODEL, server.environ())
    came: list[int] = []

    def stop_after_the_first(number: int) -> None:
        came.append(number)
        server.stop()

    ended = Transfer(store, stop_after_the_first, longest_s=0.0, piece_bytes=1_000_000)
    item = ended.item(MODEL + "model.safetensors")
    target = tmp_path / "weights"
    with pytest.raises(RemoteAwayError, match=r"what is downloaded is kept, and a new start continues"):
        ended.fetch(item, target)
    assert not target.exists()
    assert came == [1_000_000]
    server.start()
    Transfer(store, came.append).fetch(item, target)
    assert target.read_bytes() == WEIGHTS
    assert sum(came) == len(WEIGHTS)


def test_an_object_that_changes_meanwhile_is_not_used(bucket: Path, server: S3Server, tmp_path: Path) -> None:
    def replace(_: int) -> None:
        (bucket / "models/tiny/model.safetensors").write_bytes(WEIGHTS[::-1] + b"longer")

    transfer = Transfer(reader_of(MODEL, server.environ()), replace, piece_bytes=1_000_000)
    with pytest.raises(ChangedError, match="was changed while it was read"):
        transfer.fetch(transfer.item(MODEL + "model.safetensors"), tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "SIGNATURE_DOES_NOT_MATCH"),
        ("AWS_ACCESS_KEY_ID", "stranger", "No user exists with the provided access key ID"),
    ],
)
def test_wrong_credentials_are_a_problem_of_the_field_with_the_servers_words(
    bucket: Path, job: RLJob, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    model, questions = map(str, download(job.spec).problems)
    assert model.startswith(f'spec.model.checkpoint: "{MODEL}" cannot be used: ')
    assert questions.startswith(f'spec.data.train.jsonl: "{QUESTIONS}" cannot be used: ')
    assert said in model
    assert said in questions


def test_a_bucket_that_is_gone_is_named_with_the_servers_words(bucket: Path, job: RLJob) -> None:
    bucket.rename(bucket.with_name("moved"))
    for problem in download(job.spec).problems:
        assert "The specified bucket does not exist" in str(problem)


def test_a_server_that_is_away_is_no_mistake_of_the_manifest(bucket: Path, server: S3Server, tmp_path: Path) -> None:
    server.stop()
    with pytest.raises(RemoteAwayError, match=f"{QUESTIONS}: the server cannot be reached.*nothing came for"):
        fetched(objects(tmp_path), QUESTIONS, is_model=False)
    assert cached(objects(tmp_path), QUESTIONS, is_model=False) is None


@pytest.mark.parametrize(
    ("url", "is_model", "rule"),
    [
        ("s3://bucket/data/none.jsonl", False, "data/none.jsonl: is not there"),
        ("s3://bucket/data/", False, "names no object; a file is expected"),
        ("s3://bucket/none", True, "is not there"),
        ("s3://bucket/data", True, "holds no files of a model: it holds 1 other objects"),
    ],
)
def test_what_is_not_there_is_said(bucket: Path, tmp_path: Path, url: str, is_model: bool, rule: str) -> None:
    with pytest.raises(RemoteError, match=rule):
        fetched(objects(tmp_path), url, is_model=is_model)


def test_an_object_that_is_written_is_there_when_all_of_it_is(server: S3Server, bucket: Path, tmp_path: Path) -> None:
    store = store_of(MODEL, server.environ())
    (tmp_path / "large").write_bytes(WEIGHTS * 8)

    def fail(_: int) -> None:
        raise InterruptedError("the run ends")

    with pytest.raises(InterruptedError):
        store.write_file("s3://bucket/up/large", tmp_path / "large", fail)
    with pytest.raises(NotThereError):
        store.item("s3://bucket/up/large")
    store.write_file("s3://bucket/up/large", tmp_path / "large", lambda _: None)
    assert (bucket / "up/large").read_bytes() == WEIGHTS * 8
    store.remove(["s3://bucket/up/large", "s3://bucket/up/none"])
    assert json.dumps(store.names("s3://bucket/data/")) == '["train.jsonl"]'
