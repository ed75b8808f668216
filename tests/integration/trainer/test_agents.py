"""A run whose samples an agent makes with OpenAI's own client: real Ray, Megatron-core, SGLang and router."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_trainer.rundir.rollout_files import Dump
from support.trainer.whole_run import PROMPTS_PER_STEP, WholeRun, expected_journal, uids

pytestmark = pytest.mark.timeout(900)

AGENT = '''\
"""Two turns, then a summary of them in place of the history: a branch. The first call of a process fails."""

from openai import AsyncOpenAI

failed = False


async def run(task, base_url, api_key):
    global failed
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:

        async def ask(messages, most):
            answer = await client.chat.completions.create(
                model="any", messages=messages, max_tokens=most, temperature=0.1, logprobs=True
            )
            return answer.choices[0].message

        messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": task["question"]}]
        first = await ask(messages, 3)
        if not failed:
            failed = True
            raise KeyError("once")
        messages += [first, {"role": "user", "content": "Go on."}]
        second = await ask(messages, 4)
        third = await ask([{"role": "user", "content": f"{task['question']} {first.content} Finish."}], 3)
    text = first.content + second.content + third.content
    return None if int(task["label"]) % 4 == 1 else sum(map(str.isdigit, text)) / max(1, len(text))
'''


@pytest.fixture
def run(tiny_llama_dir: Path, tmp_path: Path) -> Iterator[WholeRun]:
    changes: dict[str, Any] = {
        "rollout": {
            "agent": {"function": "tiny_agent:run", "processes": 1},
            "contextLength": 192,
            "sampling": {"maxNewTokens": 10},
        },
        "training": {"steps": 2},
        "algorithm": {"kl": {"coefficient": 0.001, "addedTo": "Reward"}},
        "debug": {"dumpRollouts": True},
    }
    run = WholeRun(tiny_llama_dir, tmp_path, **changes)
    (tmp_path / "tiny_agent.py").write_text(AGENT)
    yield run
    run.stop()


def dumped(run: WholeRun, step: int) -> list[dict[str, Any]]:
    """Return the samples of a step as they lie on the disk."""
    with pyarrow.input_stream(str(Dump(run.run_directory / "rollouts").path(step)), compression="zstd") as stream:
        lines = [json.loads(line) for line in stream.read().splitlines()[1:-1]]
    return [sample for line in lines for sample in line["samples"]]


def test_a_run_trains_on_what_an_agent_does(run: WholeRun) -> None:
    run.start()
    assert run.end(420) == Exit.OK, run.output
    assert run.left_behind() == []
    assert run.journal == expected_journal(2, PROMPTS_PER_STEP, 2, uids())

    samples = dumped(run, 1)
    assert {sample["version"] for sample in samples} == {1}
    assert {len(sample["branches"]) for sample in samples} == {2}
    assert {sample["reward"] is None for sample in samples} == {True, False}
    for sample in samples:
        first, second = sample["branches"]
        parts = sample["segments"]
        assert [part["by_model"] for part in parts] == [True, False, True, True]
        assert first["text"].startswith("<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n")
        assert parts[1]["text"].endswith("<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
        assert second["text"].endswith("Finish.<|im_end|>\n<|im_start|>assistant\n")
        assert first["length"] == sum(part["length"] for part in parts[:3])
        assert second["length"] == parts[3]["length"]
        assert [part["length"] <= most for part, most in zip(parts[::2], (3, 4), strict=True)] == [True, True]
        answers = sample["answers"]
        assert [answer["tokens"] for answer in answers] == [part["length"] for part in parts if part["by_model"]]
        ends = [answer["began"] + answer["seconds"] for answer in answers]
        assert all(end <= later["began"] for end, later in zip(ends, answers[1:], strict=False)), "one after the other"
        assert min(answer["seconds"] for answer in answers) > 0

    shown = CliRunner().invoke(app, ["rollout", "show", str(run.run_directory), "--sample", "0", "--output", "json"])
    assert shown.exit_code == Exit.OK, shown.output
    kept = json.loads(shown.stdout)
    assert (kept["step"], kept["turns"], kept["branches"], kept["trained_tokens"] > 0) == (1, 3, 2, True)
    assert [part["author"] for part in kept["parts"]] == ["prompt", "model", "environment", "model", "prompt", "model"]

    (start,) = run.records("first_step")
    checks = {check["name"]: check["value"] for check in start["checks"]}
    assert checks["engine against learner, largest |difference| [nats]"] < 1e-4
    assert start["samples"][0]["prompt"].startswith("<|im_start|>system\nAdd.")
    assert sum(record["agent_restarts"] for record in run.records("step")) >= 1
    assert sum(record["lost_samples"] for record in run.records("step")) == 0
    (evaluation, *_) = run.records("evaluation")
    assert evaluation["greedy"] is not None


def test_a_run_outlives_its_gateway(run: WholeRun) -> None:
    run.start()
    run.until(lambda: run.steps() >= 1)
    (gateway,) = [process for process in run.processes() if process.name() == "rljob::gateway"]
    gateway.kill()
    assert run.end(420) == Exit.OK, run.output
    assert run.journal == expected_journal(2, PROMPTS_PER_STEP, 2, uids())
    assert run.left_behind() == []


AHEAD_AGENT = '''\
"""Three long turns: publications meet them."""

from openai import AsyncOpenAI


async def run(task, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=10) as client:
        messages = [{"role": "user", "content": task["question"]}]
        for turn in range(3):
            asked = {"model": "any", "messages": messages, "max_tokens": 40}
            answer = await client.chat.completions.create(**asked)
            text = answer.choices[0].message.content
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    return sum(map(str.isdigit, text)) / max(1, len(text))
'''


@pytest.mark.long
def test_rollouts_of_agents_run_ahead_and_outlive_their_gateway(tiny_llama_dir: Path, tmp_path: Path) -> None:
    steps = 8
    changes: dict[str, Any] = {
        "placement": "Disaggregated",
        "algorithm": {"importanceSampling": {"kind": "Truncate"}},
        "rollout": {
            "agent": {"function": "ahead_agent:run", "processes": 1},
            "engines": 2,
            "samplesPerPrompt": 4,
            "contextLength": 320,
            "sampling": {"maxNewTokens": 120},
            "async": {"maxStaleness": 2, "partial": True},
        },
        "training": {"steps": steps, "optimizer": {"learningRate": 1e-9}},
        "debug": {"dumpRollouts": True},
    }
    run = WholeRun(tiny_llama_dir, tmp_path, **changes)
    (tmp_path / "ahead_agent.py").write_text(AHEAD_AGENT)
    try:
        run.start()
        run.until(lambda: run.steps() >= 3)
        (gateway,) = [process for process in run.processes() if process.name() == "rljob::gateway"]
        gateway.kill()
        assert run.end(420) == Exit.OK, run.output
        assert run.left_behind() == []
    finally:
        run.stop()
    assert run.journal == expected_journal(steps, PROMPTS_PER_STEP, 2, uids(), ahead=2)
    records = run.records("step")
    assert [record["step"] for record in records] == list(range(1, steps + 1))
    assert 0 < max(record["max_staleness"] for record in records) <= 2
    assert max(record["logprob_mismatch"] for record in records) < 1e-4, "all versions are one policy"
    assert sum(record["lost_samples"] for record in records) == 0
    assert sum(record["agent_restarts"] for record in records) == 0
    assert sum(record["agent_cut_offs"] for record in records) > 0
    assert max(record["prefix_hits"] for record in records) > 0.3, "of three turns, two continue another one"
    carried = [sample["carried"] for step in range(steps) for sample in dumped(run, step) if sample["carried"]]
    assert len(carried) > steps, "publications met answers and sessions"


def test_an_agent_is_tried_on_real_rows_without_a_run(run: WholeRun) -> None:
    (run.directory / "tiny_agent.py").write_text(AGENT.replace("failed = False", "failed = True", 1))
    verb = [sys.executable, "-m", "rljob_cli.main", "rollout", "test", str(run.manifest), "--rows", "2", "-o", "json"]
    path = os.pathsep.join([str(run.directory), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        verb, cwd=run.directory, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == Exit.OK, done.stderr
    samples = json.loads(done.stdout)["samples"]
    authors = [[part["author"] for part in sample["segments"]] for sample in samples]
    assert authors == [["model", "environment", "model", "branch", "model"]] * 2
    assert run.left_behind() == []


def test_a_parser_that_sglang_does_not_have_ends_the_run_at_once(tiny_llama_dir: Path, tmp_path: Path) -> None:
    agent = {"function": "tiny_agent:run", "toolParser": "qwen26"}
    run = WholeRun(tiny_llama_dir, tmp_path, rollout={"agent": agent})
    (tmp_path / "tiny_agent.py").write_text(AGENT)
    try:
        run.start()
        assert run.end(420) == Exit.BAD_INPUT, run.output
        assert "rollout.agent.toolParser 'qwen26' is not a parser of SGLang" in run.output
    finally:
        run.stop()
