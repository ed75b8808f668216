"""Supervised fine-tuning as a whole run: real Ray and Megatron-core, and no engine anywhere."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.exits import Exit
from whole_run import PROMPTS_PER_STEP, QUESTIONS, WholeRun, expected_journal, imitation, merged, uids

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
        run.manifest.write_text(yaml.safe_dump(job | {"spec": merged(job["spec"], sections)}))
        runs.append(run)
        run.start()
        return run

    yield start
    for run in runs:
        run.stop()


def weights(run: WholeRun) -> bytes:
    return (run.run_directory / "hf" / "model.safetensors").read_bytes()


def test_a_model_learns_its_responses_and_a_tracked_run_that_is_interrupted_ends_with_the_same_weights(
    begin: Begin, tiny_llama_dir: Path
) -> None:
    whole = begin("whole", tiny_llama_dir)
    assert whole.end() == Exit.OK, whole.output
    perplexities = [record["perplexity"] for record in whole.records("step")]
    assert len(perplexities) == STEPS
    assert perplexities[-1] < 0.2 * perplexities[0]
    assert whole.journal == expected_journal(STEPS, PROMPTS_PER_STEP, 4, uids(rows=QUESTIONS))
    assert not any(path.name.startswith(("engine", "router")) for path in (whole.run_directory / "logs").iterdir())
    assert whole.records("finding") == []
    (first,) = whole.records("first_step")
    assert first["samples"][0]["response"].endswith("<|im_end|>")
    assert whole.left_behind() == []

    broken = begin("broken", tiny_llama_dir, tracking={"wandb": {"project": "tiny", "mode": "offline"}})
    broken.until(lambda: broken.steps() >= 6)
    broken.interrupt()
    assert broken.end() == Exit.PREEMPTED, broken.output
    broken.start()
    assert broken.end() == Exit.OK, broken.output
    assert weights(broken) == weights(whole)
    work = [record for record in broken.journal if record["event"] != "committed"]
    assert work == [record for record in whole.journal if record["event"] != "committed"]
    assert broken.left_behind() == []

    name = (broken.run_directory / "wandb-id").read_text()
    files = list(broken.run_directory.glob(f"wandb/offline-run-*-{name}/run-{name}.wandb"))
    assert len(files) == 2, "one of each attempt, under one id"
    assert all(b"train/perplexity" in file.read_bytes() for file in files)


def test_a_tracker_that_cannot_begin_ends_the_run_and_is_told(begin: Begin, tiny_llama_dir: Path) -> None:
    run = begin("untracked", tiny_llama_dir, tracking={"wandb": {"project": "tiny", "apiKeyFile": "/absent"}})
    assert run.end() == Exit.BAD_INPUT, run.output
    told = "TrackingError: spec.tracking.wandb.apiKeyFile /absent: cannot be read: No such file or directory"
    assert run.output.count(told) == 1
    assert run.records("end")[-1]["message"] == told
    assert run.left_behind() == []
