"""A real run whose samples unmodified clients make: what an engine recorded is what the learner computes.

The model is random, so no client does its task: `test_clients.py` has what they do.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from rljob_api.exits import Exit
from rljob_trainer.rundir.rollout_files import Dump
from support.trainer.client_environment import CLIENTS, client_python
from support.trainer.whole_run import WholeRun

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

AGENT = '''\
"""Runs the program of a client that its question names, in an environment of its own."""

import asyncio
import json
import os
import tempfile
from pathlib import Path

from support.trainer.client_environment import PROGRAMS, client_python, session_variables


async def run(task, base_url, api_key):
    client = task["question"].split()[0]
    with tempfile.TemporaryDirectory() as home:
        program = await asyncio.create_subprocess_exec(
            client_python(), PROGRAMS / f"{client}.py",
            env=session_variables(base_url, api_key, task["question"], 8, Path(home)), cwd=home,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        said, complained = await program.communicate()
    # A random model never ends its answer, which OpenAI's Agents SDK takes for an error of the model.
    if program.returncode and b"ModelBehaviorError" not in complained:
        raise RuntimeError(complained.decode()[-2000:])
    return float(len(said) % 3)
'''


@pytest.fixture
def run(tiny_llama_dir: Path, tmp_path: Path) -> Iterator[WholeRun]:
    client_python()  # installed before the run, not in its first call
    agent = {"function": "client_agent:run", "processes": 1, "concurrency": 3, "memoryMib": 8192}
    changes: dict[str, Any] = {
        "data": {"heldOut": {"jsonl": str(tmp_path / "held-out.jsonl"), "limit": 1}},
        "rollout": {
            "agent": agent | {"toolParser": "qwen25"},
            "promptsPerStep": len(CLIENTS),
            "samplesPerPrompt": 2,
            "contextLength": 768,
            "sampling": {"maxNewTokens": 64},
        },
        "training": {"steps": 1},
        "debug": {"dumpRollouts": True},
    }
    run = WholeRun(tiny_llama_dir, tmp_path, **changes)
    rows = [{"question": f"{client} says", "answer": "1"} for client in CLIENTS]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held-out.jsonl").write_text(json.dumps(rows[-1]) + "\n")  # rows of a file are not in both
    (tmp_path / "client_agent.py").write_text(AGENT)
    yield run
    run.stop()


def test_the_learner_computes_what_the_engine_recorded_for_each_client(run: WholeRun) -> None:
    run.start()
    assert run.end(600) == Exit.OK, run.output
    assert run.left_behind() == []
    dump = Dump(run.run_directory / "rollouts")
    (step,) = dump.steps()
    with pyarrow.input_stream(str(dump.path(step)), compression="zstd") as stream:
        groups = [json.loads(line) for line in stream.read().splitlines()[1:-1]]
    branches: dict[str, set[int]] = defaultdict(set)
    for sample in (sample for group in groups for sample in group["samples"]):
        client = next(name for name in CLIENTS if name in sample["branches"][0]["text"])
        branches[client].add(len(sample["branches"]))
        assert any(part["by_model"] for part in sample["segments"])
    assert branches.keys() == set(CLIENTS)
    edited = ("mini_swe_agent", "openai_chat", "openai_responses")
    assert {name: branches[name] for name in edited} == {name: {2} for name in edited}
    (start,) = run.records("first_step")
    checks = {check["name"]: check["value"] for check in start["checks"]}
    assert checks["engine against learner, largest |difference| [nats]"] < 1e-4
    assert sum(record["lost_samples"] for record in run.records("step")) == 0
