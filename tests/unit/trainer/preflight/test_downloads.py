"""The checks before a start, of a model and questions on the hub: all but the weights is downloaded for them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rljob_api.reading.manifest import load
from rljob_api.sections import RLJob, Source, Teacher
from rljob_api.sizing.model_shape import shape
from rljob_trainer.data.hub import HubAwayError
from rljob_trainer.preflight.checks import PreflightError, look_at_files, require
from rljob_trainer.preflight.downloads import download, references
from rljob_trainer.preflight.model_files import model_files
from support.operator.operator_world import raw_job
from support.trainer.hub_server import HubServer, hub_server

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 7,
}
MODEL, QUESTIONS = "hf://org/tiny", "hf://datasets/org/sums/train.jsonl"
IN_FP8 = (
    '"config.json" has a quantization_config (fp8): the learner trains weights that are not quantised; nearest valid: '
    "a bf16 version of it"
)
NO_TOKENIZER = '"tokenizer.json" is not there: the checkpoint has no tokenizer'


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with hub_server() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("RLJOB_CACHE", str(tmp_path))
        served.push("models/org/tiny", {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": b"weights"})
        served.push("datasets/org/sums", {"train.jsonl": b'{"question": "1+1", "answer": "2"}\n{"question": 3}\n'})
        yield served


@pytest.fixture
def job() -> RLJob:
    return changed(load(yaml.safe_dump(raw_job())), checkpoint=MODEL, train=QUESTIONS)


def changed(job: RLJob, *, checkpoint: str, train: str) -> RLJob:
    data = job.spec.data.model_copy(update={"train": Source(jsonl=train), "held_out": None, "evaluation_sets": ()})
    model = job.spec.model.model_copy(update={"checkpoint": checkpoint})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"model": model, "data": data})})


def said(job: RLJob, *, here: bool) -> list[str]:
    found = look_at_files(job, model_files(job.spec.model.checkpoint), here=here)
    return [*map(str, found.problems), *(f"elsewhere: {name}" for name in found.elsewhere)]


def test_nothing_is_downloaded_to_validate(server: HubServer, job: RLJob) -> None:
    assert said(job, here=False) == [f"elsewhere: {QUESTIONS}"]
    assert model_files(MODEL) is None
    assert server.requests == []


def test_a_start_looks_at_all_but_the_weights(server: HubServer, job: RLJob) -> None:
    assert download(job.spec).problems == ()
    assert server.downloads("model.safetensors") == 0
    files = model_files(MODEL)
    assert files is not None
    assert shape(files.config).hidden == 64
    problems = said(job, here=True)
    assert any(NO_TOKENIZER in problem for problem in problems), problems
    assert any("spec.data.train.jsonl: line 2" in problem for problem in problems), problems


def test_a_quantised_model_is_refused_before_its_weights_are_downloaded(server: HubServer, job: RLJob) -> None:
    config = CONFIG | {"quantization_config": {"quant_method": "fp8"}}
    server.push("models/org/tiny", {"config.json": json.dumps(config).encode(), "model.safetensors": b"weights"})
    download(job.spec)
    assert any(f"spec.model.checkpoint: {IN_FP8}" in problem for problem in said(job, here=True))
    assert server.downloads("model.safetensors") == 0


@pytest.mark.parametrize("name", ["V3", "V3-0324", "R1", "R1-0528"])
def test_models_of_deepseek_are_known_to_be_in_fp8(server: HubServer, job: RLJob, name: str) -> None:
    wanted = changed(job, checkpoint=f"hf://deepseek-ai/DeepSeek-{name}", train=QUESTIONS)
    assert said(wanted, here=False)[0] == f"spec.model.checkpoint: {IN_FP8}"
    assert server.requests == []


def test_what_the_hub_does_not_have_is_a_problem_of_its_field(server: HubServer, job: RLJob, tmp_path: Path) -> None:
    wrong = changed(job, checkpoint="hf://org/large", train="hf://datasets/org/sums/dev.jsonl")
    model, questions = map(str, download(wrong.spec).problems)
    assert model.startswith('spec.model.checkpoint: "hf://org/large" cannot be used: http://127.0.0.1:')
    assert questions == (
        'spec.data.train.jsonl: "hf://datasets/org/sums/dev.jsonl" cannot be used: '
        "org/sums has no file 'dev.jsonl' at main"
    )
    with pytest.raises(PreflightError, match=r"spec\.model\.checkpoint: .* cannot be used"):
        require(wrong, tmp_path)


def test_a_hub_that_is_away_is_no_mistake_of_the_manifest(
    server: HubServer, job: RLJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubAwayError, match="cannot be reached"):
        require(job, tmp_path)


def test_a_teacher_is_downloaded_where_something_learns_from_it(job: RLJob) -> None:
    algorithm = job.spec.algorithm.model_copy(update={"teacher": Teacher(checkpoint="hf://org/large")})
    spec = job.spec.model_copy(update={"algorithm": algorithm})
    fields = [field for field, _, _ in references(spec)]
    assert fields == ["spec.model.checkpoint", "spec.algorithm.teacher.checkpoint", "spec.data.train.jsonl"]
    alone = spec.model_copy(update={"debug": spec.debug.model_copy(update={"rollout_only": True})})
    assert [field for field, _, _ in references(alone)] == ["spec.model.checkpoint", "spec.data.train.jsonl"]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-0.6B", 0.596),
        ("Qwen/Qwen3-4B", 4.022),
        ("Qwen/Qwen3-8B", 8.191),
        ("Qwen/Qwen3-32B", 32.762),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.236),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.030),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.554),
    ],
)
def test_a_common_model_is_planned_before_it_is_downloaded(server: HubServer, name: str, billions: float) -> None:
    files = model_files(f"hf://{name}@main")
    assert files is not None
    assert round(shape(files.config).parameters / 1e9, 3) == billions
    assert files.stop_tokens
    assert server.requests == []
