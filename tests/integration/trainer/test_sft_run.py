"""Supervised fine-tuning as a whole run: real Ray and Megatron-core, and no engine anywhere."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_api.exits import Exit
from support.trainer.tiny_models import tiny_llama
from support.trainer.whole_run import (
    HELD_OUT,
    PROMPTS_PER_STEP,
    WholeRun,
    expected_journal,
    imitation,
    merged,
    uids,
    without_commits,
)

Begin = Callable[..., WholeRun]
STEPS = 24


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    runs: list[WholeRun] = []

    def start(name: str, model: Path, **sections: Any) -> WholeRun:
        directory = tmp_path / name
        directory.mkdir()
        run = WholeRun(model, directory, training={"steps": STEPS}, checkpoint={"hfExport": True, "interval": 4})
        job = imitation(yaml.safe_load(run.manifest.read_text()))
        sections = merged({"rollout": {"contextLength": 128, "sampling": {"maxNewTokens": 64}}}, sections)
        run.manifest.write_text(yaml.safe_dump(job | {"spec": merged(job["spec"], sections)}))
        rows = [json.loads(line) for line in (directory / "questions.jsonl").read_text().splitlines()]
        rows[::2] = [
            {"question": [*turns(row), *turns(row)]} for row in rows[::2]
        ]  # whole conversations, two answers each
        (directory / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs.append(run)
        run.start()
        return run

    yield start
    for run in runs:
        run.stop()


def turns(row: dict[str, Any]) -> list[dict[str, str]]:
    return [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": row["answer"]}]


def known(model_dir: Path, questions: Path) -> float:
    """Return the perplexity of the held-out answers by transformers' own model."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    logprobs = []
    for line in questions.read_text().splitlines()[:HELD_OUT]:
        row = json.loads(line)
        talk = row["question"] if "answer" not in row else turns(row)
        for number, turn in enumerate(talk):
            if turn["role"] == "assistant":
                asked = tokenizer.apply_chat_template(talk[:number], tokenize=False, add_generation_prompt=True)
                prompt = tokenizer.encode(asked, add_special_tokens=False)
                answer = tokenizer.encode(turn["content"] + "<|im_end|>", add_special_tokens=False)
                with torch.no_grad():
                    every = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
                logprobs += [every[place, token] for place, token in enumerate(answer, start=len(prompt) - 1)]
    return float((-torch.stack(logprobs).mean()).exp())


def weights(run: WholeRun) -> bytes:
    return (run.run_directory / "hf" / "model.safetensors").read_bytes()


def test_a_model_learns_its_responses(begin: Begin, tiny_llama_dir: Path) -> None:
    whole = begin("whole", tiny_llama_dir)
    assert whole.end() == Exit.OK, whole.output
    perplexities = [record["perplexity"] for record in whole.records("step")]
    assert len(perplexities) == STEPS
    assert perplexities[-1] < 0.2 * perplexities[0]
    before, after = whole.records("perplexity")
    assert [(each["step"], each["n"]) for each in (before, after)] == [(0, HELD_OUT), (STEPS, HELD_OUT)]
    assert before["perplexity"] == pytest.approx(known(tiny_llama_dir, whole.directory / "questions.jsonl"), rel=1e-4)
    assert after["perplexity"] < 0.5 * before["perplexity"]
    assert f"held-out perplexity {before['perplexity']:.3g} -> {after['perplexity']:.3g}, " in whole.output
    assert whole.journal == expected_journal(STEPS, PROMPTS_PER_STEP, 4, uids())
    assert not any(path.name.startswith(("engine", "router")) for path in (whole.run_directory / "logs").iterdir())
    assert whole.records("finding") == []
    (first,) = whole.records("first_step")
    assert all(sample["response"].endswith("<|im_end|>") for sample in first["samples"])
    talks = [sample["segments"] for sample in first["samples"] if sample["segments"]]
    assert [[segment["by_model"] for segment in talk] for talk in talks] == [[True, False, True]] * len(talks) != []
    assert whole.left_behind() == []


@pytest.mark.long
def test_stages_with_several_chunks_learn_what_one_rank_learns(begin: Begin, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "deep", layers=4)
    training = {"steps": 3, "maxTokensPerGpu": 256, "optimizer": {"epsilon": 1e-4}}
    chunks = {"gpusPerNode": 2, "pipelineParallel": 2, "virtualPipeline": 2}
    runs = [begin(name, model, training=training | more) for name, more in (("alone", {}), ("chunks", chunks))]
    assert [run.end() for run in runs] == [Exit.OK] * 2, runs[1].output
    for name in ("step", "perplexity"):
        wanted, found = ([record["perplexity"] for record in run.records(name)] for run in runs)
        assert found == pytest.approx(wanted, rel=1e-5)
        assert len(found) == {"step": 3, "perplexity": 2}[name]
    wanted, found = (load_file(run.run_directory / "hf" / "model.safetensors") for run in runs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert runs[1].left_behind() == []


@pytest.mark.long
def test_a_tracked_run_that_is_interrupted_ends_with_the_same_weights(begin: Begin, tiny_llama_dir: Path) -> None:
    whole = begin("whole", tiny_llama_dir)
    assert whole.end() == Exit.OK, whole.output
    broken = begin("broken", tiny_llama_dir, tracking={"wandb": {"project": "tiny", "mode": "Offline"}})
    broken.until(lambda: broken.steps() >= 6)
    broken.interrupt()
    assert broken.end() == Exit.PREEMPTED, broken.output
    broken.start()
    assert broken.end() == Exit.OK, broken.output
    assert weights(broken) == weights(whole)
    work = without_commits(broken.journal)
    assert work == without_commits(whole.journal)
    assert broken.left_behind() == []

    name = (broken.run_directory / "wandb-id").read_text()
    files = list(broken.run_directory.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))
    assert len(files) == 2, "one of each attempt, under one id"
    assert all(b"train/perplexity" in file.read_bytes() for file in files)


def test_a_tracker_that_cannot_begin_ends_the_run_and_is_reported(begin: Begin, tiny_llama_dir: Path) -> None:
    run = begin("untracked", tiny_llama_dir, tracking={"wandb": {"project": "tiny", "apiKeyFile": "/absent"}})
    assert run.end() == Exit.BAD_INPUT, run.output
    error = "TrackingError: spec.tracking.wandb.apiKeyFile /absent: cannot be read: No such file or directory"
    assert run.output.count(error) == 1
    assert run.records("end")[-1]["message"] == error
    assert run.left_behind() == []
