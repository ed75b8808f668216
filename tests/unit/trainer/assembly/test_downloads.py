"""A manifest with references to the hub becomes one with paths, of the same commits after a restart."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob
from rljob_trainer.assembly.downloads import FILE_NAME, recorded_revisions, with_local_files
from rljob_trainer.data.hub import Hub, HubError
from rljob_trainer.data.stored_objects import objects_of
from support.trainer.hub_server import HubServer, hub_server

MODEL, TEACHER, QUESTIONS = "hf://org/tiny", "hf://org/large@v1", "hf://datasets/org/sums/train.jsonl"
MANIFEST = f"""
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {{name: sums}}
spec:
  model: {{checkpoint: "{MODEL}"}}
  data:
    train: {{jsonl: "{QUESTIONS}"}}
    heldOut: {{parquet: "hf://datasets/org/sums/test.parquet"}}
    evaluationSets: [{{name: hard, jsonl: "hf://datasets/org/sums/hard.jsonl"}}, {{name: own, jsonl: own.jsonl}}]
  algorithm: {{name: distillation, teacher: {{checkpoint: "{TEACHER}"}}}}
  reward: {{kind: ExactMatch}}
  rollout: {{promptsPerStep: 4, samplesPerPrompt: 4, sampling: {{maxNewTokens: 8}}}}
  training: {{steps: 10, gpusPerNode: 1, optimizer: {{learningRate: 1.0e-5}}}}
  placement: Colocated
  runtime: {{device: Cpu}}
"""


@pytest.fixture
def server() -> Iterator[HubServer]:
    with hub_server() as served:
        served.push("models/org/tiny", {"config.json": b"{}"})
        served.push("models/org/large", {"config.json": b"[]"}, branch="v1")
        served.push("datasets/org/sums", {"train.jsonl": b"1", "test.parquet": b"2", "hard.jsonl": b"3"})
        yield served


@pytest.fixture
def job() -> RLJob:
    return load(MANIFEST)


def placed(server: HubServer, job: RLJob, directory: Path, *, resumes: bool) -> RLJob:
    hub, stores = Hub(directory / "cache", server.url), objects_of({}, directory / "cache")
    return with_local_files(job, hub, stores, directory, resumes, lambda: None)


def test_every_reference_becomes_a_path(server: HubServer, job: RLJob, tmp_path: Path) -> None:
    spec = placed(server, job, tmp_path, resumes=False).spec
    assert (Path(spec.model.checkpoint) / "config.json").read_bytes() == b"{}"
    assert spec.algorithm.teacher is not None
    assert (Path(spec.algorithm.teacher.checkpoint) / "config.json").read_bytes() == b"[]"
    hard, own = spec.data.evaluation_sets
    assert spec.data.held_out is not None
    paths = (spec.data.train.jsonl, spec.data.held_out.parquet, hard.jsonl)
    assert [Path(str(path)).read_bytes() for path in paths] == [b"1", b"2", b"3"]
    assert own.jsonl == "own.jsonl"
    assert spec.model_copy(
        update={"model": job.spec.model, "algorithm": job.spec.algorithm, "data": job.spec.data}
    ) == (job.spec)


def test_a_run_that_resumes_keeps_its_commits_although_the_branch_has_moved(
    server: HubServer, job: RLJob, tmp_path: Path
) -> None:
    first = placed(server, job, tmp_path, resumes=False)
    server.push("models/org/tiny", {"config.json": b"{1}"})
    server.push("datasets/org/sums", {"train.jsonl": b"4", "test.parquet": b"5", "hard.jsonl": b"6"})
    assert placed(server, job, tmp_path, resumes=True) == first
    anew = placed(server, job, tmp_path, resumes=False).spec
    assert (Path(anew.model.checkpoint) / "config.json").read_bytes() == b"{1}"
    assert Path(str(anew.data.train.jsonl)).read_bytes() == b"4"


def test_the_commits_are_recorded_by_reference(server: HubServer, job: RLJob, tmp_path: Path) -> None:
    placed(server, job, tmp_path, resumes=False)
    recorded = json.loads((tmp_path / FILE_NAME).read_text())
    assert set(recorded) >= {MODEL, TEACHER, QUESTIONS}
    assert recorded[MODEL] == server.commit("models/org/tiny", "main")


def test_a_manifest_without_references_asks_nothing(server: HubServer, job: RLJob, tmp_path: Path) -> None:
    local = placed(server, job, tmp_path, resumes=False)
    (tmp_path / FILE_NAME).unlink()
    server.requests.clear()
    assert placed(server, local, tmp_path, resumes=True) == local
    assert server.requests == []
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b'{"hf://org/tiny": 7}', b'{"hf://org/tiny": "../../../home"}', b"[" * 10**5]
)
def test_commits_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    """Whoever may write into the run directory would have a run read another directory."""
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(HubError, match=r"revisions.json: does not hold the commits"):
        recorded_revisions(tmp_path)


def test_a_run_without_references_has_recorded_none(tmp_path: Path) -> None:
    assert recorded_revisions(tmp_path) == {}
