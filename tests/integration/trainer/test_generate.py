"""A run whose samples a function makes: real Ray, Megatron-core, SGLang and router, on a tiny model."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from rljob_api.exits import Exit
from rljob_trainer.rundir.rollout_files import Dump
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, uids

pytestmark = pytest.mark.timeout(900)

GENERATE = '''\
"""Two turns: a short one, and one after a remark of the user's."""


async def generate(conversation):
    first = await conversation.model(max_tokens=3)
    conversation.reply({"role": "user", "content": "Go on."})
    second = await conversation.model()
    return first.text + second.text
'''


@pytest.fixture
def run(tiny_llama_dir: Path, tmp_path: Path) -> Iterator[WholeRun]:
    changes: dict[str, Any] = {
        "rollout": {"generate": "tiny_generate:generate", "contextLength": 128},
        "training": {"steps": 2},
        "algorithm": {"kl": {"coefficient": 0.001}},
        "debug": {"dumpRollouts": True},
    }
    run = WholeRun(tiny_llama_dir, tmp_path, **changes)
    (tmp_path / "tiny_generate.py").write_text(GENERATE)
    yield run
    run.stop()


def dumped(run: WholeRun, step: int) -> list[dict[str, Any]]:
    """Return the samples of a step as they lie on the disk."""
    with pyarrow.input_stream(str(Dump(run.run_directory / "rollouts").path(step)), compression="zstd") as stream:
        lines = [json.loads(line) for line in stream.read().splitlines()[1:-1]]
    return [sample for line in lines for sample in line["samples"]]


def test_a_run_trains_on_samples_that_a_function_makes(run: WholeRun) -> None:
    run.start()
    assert run.end(420) == Exit.OK, run.output
    assert run.left_behind() == []
    assert run.journal == expected_journal(2, PROMPTS_PER_STEP, 2, uids())

    samples = dumped(run, 1)
    assert {tuple(part["by_model"] for part in sample["segments"]) for sample in samples} == {(True, False, True)}
    assert {sample["version"] for sample in samples} == {1}
    assert all("<|im_start|>user\nGo on.<|im_end|>" in sample["segments"][1]["text"] for sample in samples)

    (first,) = run.records("first_step")
    checks = {check["name"]: check["value"] for check in first["checks"]}
    assert checks["KL to the reference"] == 0.0
    assert checks["engine against learner, largest |difference| [nats]"] < 1e-3
    assert [part["by_model"] for part in first["samples"][0]["segments"]] == [True, False, True]
    lengths = [record["response_length"] for record in run.records("step")]
    assert all(0 < length <= 8 for length in lengths), lengths
    (evaluation, *_) = run.records("evaluation")
    assert evaluation["greedy"] is not None


def test_a_function_is_tried_on_real_rows_without_a_run(run: WholeRun) -> None:
    verb = [sys.executable, "-m", "rljob_cli.main", "rollout", "test", str(run.manifest), "--rows", "2", "-o", "json"]
    path = os.pathsep.join([str(run.directory), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        verb, cwd=run.directory, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == Exit.OK, done.stderr
    samples = json.loads(done.stdout)["samples"]
    assert [[part["author"] for part in sample["segments"]] for sample in samples] == [
        ["model", "environment", "model"]
    ] * 2
    assert run.left_behind() == []


def test_a_run_offers_tools(tiny_llama_dir: Path, tmp_path: Path) -> None:
    run = WholeRun(
        tiny_llama_dir,
        tmp_path,
        data={"systemPrompt": "You may call calculator."},
        rollout={"tools": {"functions": ["calculator"]}, "contextLength": 128},
        training={"steps": 1},
        debug={"dumpRollouts": True},
    )
    try:
        run.start()
        assert run.end(420) == Exit.OK, run.output
    finally:
        run.stop()
    assert all([part["by_model"] for part in sample["segments"]] == [True] for sample in dumped(run, 0))
    assert run.left_behind() == []
