"""`rljob rollout test`: samples of real rows, who wrote what of them, and what the reward says."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from aiohttp import web
from click.testing import Result
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_cli.trials import rollout_view
from rljob_trainer.assembly import rollout_trial
from rljob_trainer.assembly.rollout_trial import RolloutTrial
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.engines.key import KEY_VARIABLE, with_key
from rljob_trainer.engines.served import Served
from rljob_trainer.processes.background import Background
from support.cli.sample_job import text
from support.trainer.tiny_models import tiny_llama
from support.trainer.whole_run import manifest

GENERATE = """
async def generate(conversation):
    await conversation.model()
    conversation.reply({"role": "user", "content": "Well?"})
    await conversation.model()
"""
REWARD = """
def digits(question, response, label, metadata):
    return float(response == label)
"""


CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "8 + 1"}}</tool_call>'


class FakeEngine:
    """Says the sum behind `Well?`, and before it nothing of use; remembers what it was asked."""

    def __init__(self, model: Path) -> None:
        self.tokenizer = load_tokenizer(model)
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.key = ""
        self.ends = "stop"

    def answer(self, before: str) -> str:
        if "calculator" in before:
            return "9" if "<|im_start|>tool" in before else CALL
        return "9" if "Well?" in before else "Hm.\x1b[2J"

    async def generate(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization", "") != with_key(self.key).get("Authorization", ""):
            return web.json_response({"error": "Unauthorized"}, status=401)
        asked = await request.json()
        self.asked.append(asked)
        if self.status != 200:
            return web.json_response({"error": {"message": "too long"}}, status=self.status)
        before = self.tokenizer.decode(asked["input_ids"])
        text = self.answer(before)
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), 2]
        logprobs = [[-0.5, token, None] for token in tokens]
        meta = {"output_token_logprobs": logprobs, "weight_version": "default", "finish_reason": {"type": self.ends}}
        answer = {"text": text, "meta_info": meta}
        number = asked["sampling_params"]["n"]
        return web.json_response(answer if number == 1 else [answer] * number)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory with data and functions; the verb changes the search path and the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.delitem(sys.modules, "own_generate", raising=False)
    rows = [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(16)]
    Path("questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("tiny_reward.py").write_text(REWARD)
    Path("own_generate.py").write_text(GENERATE)


@pytest.fixture
def engine(model: Path) -> Iterator[tuple[FakeEngine, str]]:
    fake = FakeEngine(model)
    application = web.Application()
    application.router.add_post("/generate", fake.generate)
    with Background() as background:
        runner = web.AppRunner(application)
        background.run(runner.setup(), timeout_s=10)
        background.run(web.TCPSite(runner, "127.0.0.1", 0).start(), timeout_s=10)
        yield fake, f"http://127.0.0.1:{runner.addresses[0][1]}"
        background.run(runner.cleanup(), timeout_s=10)


def tried(
    model: Path,
    url: str | None,
    *options: str,
    data: Mapping[str, Any] = MappingProxyType({}),
    algorithm: Mapping[str, Any] = MappingProxyType({}),
    **rollout: Any,
) -> Result:
    sampled = {"contextLength": 128, "sampling": {"maxNewTokens": 64}, **rollout}
    content = manifest(model, Path.cwd(), data=dict(data), algorithm=dict(algorithm), rollout=sampled)
    Path("job.yaml").write_text(yaml.safe_dump(content))
    return CliRunner().invoke(app, ["rollout", "test", "job.yaml", *([] if url is None else ["--url", url]), *options])


def test_every_sample_is_shown_with_what_is_trained_on_of_it(model, engine):
    _, url = engine
    result = tried(model, url, "--rows", "2", generate="own_generate:generate")
    assert result.exit_code == Exit.OK, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0].startswith("row 0, label 9, reward 1, stop, ")
    assert lines[0].endswith(" tokens are trained on")
    assert lines[1:][:3] == [
        "prompt       <|im_start|>user",
        "             8 + 1 =<|im_end|>",
        "             <|im_start|>assistant",
    ]
    assert "model        Hm.\\x1b[2J<|im_end|>" in lines
    assert "environment" in [line.partition(" ")[0] for line in lines]
    assert "             Well?<|im_end|>" in lines
    assert "model        9<|im_end|>" in lines
    assert any(line.startswith("row 1, label 10, reward 0, stop, ") for line in lines)


@pytest.mark.parametrize("generate", [None, "own_generate:generate"])
def test_a_server_that_demands_a_key_is_shown_the_one_of_the_environment(model, engine, monkeypatch, generate):
    fake, url = engine
    fake.key = "a key"
    refused = tried(model, url, "--rows", "1", generate=generate)
    assert (refused.exit_code, fake.asked) == (Exit.LOST_PEER, [])
    monkeypatch.setenv(KEY_VARIABLE, "a key")
    result = tried(model, url, "--rows", "1", generate=generate)
    assert result.exit_code == Exit.OK, result.output
    assert "a key" not in result.output + refused.output


def test_an_engine_that_is_started_for_it_demands_a_key_of_its_own(model, engine, monkeypatch):
    fake, url = engine

    def start(command, _):
        fake.key = command.key
        return Served(url, pid=1, seconds=0.0)

    monkeypatch.setattr(rollout_trial, "EngineServer", lambda *_: Mock(start=start))
    monkeypatch.setenv(KEY_VARIABLE, "of another engine")
    result = tried(model, None, "--rows", "1")
    assert result.exit_code == Exit.OK, result.output
    assert len(fake.key) == 64


def test_programs_get_the_same_as_json(model, engine):
    _, url = engine
    result = tried(model, url, "--rows", "1", "--samples", "2", "-o", "json", generate="own_generate:generate")
    first, second = json.loads(result.stdout)["samples"]
    assert [part["author"] for part in first["segments"]] == ["model", "environment", "model"]
    assert (first["row"], first["reward"], first["finish_reason"], first["dropped"]) == (0, 1.0, "stop", False)
    assert first["trained_tokens"] == sum(part["tokens"] for part in first["segments"] if part["author"] == "model")
    assert second["segments"] == first["segments"]


def test_without_a_function_the_model_answers_once(model, engine):
    fake, url = engine
    result = tried(model, url, "--rows", "1", "--samples", "2", "--greedy", "-o", "json")
    assert [part["author"] for sample in json.loads(result.stdout)["samples"] for part in sample["segments"]] == [
        "model",
        "model",
    ]
    (asked,) = fake.asked
    assert (asked["sampling_params"]["n"], asked["sampling_params"]["temperature"]) == (2, 0.0)


@pytest.mark.parametrize(("masks", "trained"), [(False, True), (True, False)])
def test_a_truncated_sample_is_trained_on_unless_the_manifest_masks_it(model, engine, masks, trained):
    fake, url = engine
    fake.ends = "length"
    result = tried(model, url, "--rows", "1", "-o", "json", algorithm={"maskTruncated": masks})
    (sample,) = json.loads(result.stdout)["samples"]
    assert (sample["finish_reason"], sample["trained_tokens"] > 0, sample["dropped"]) == ("length", trained, masks)


def test_a_model_s_tools_run_and_their_results_are_the_environment_s(model, engine):
    _, url = engine
    data = {"systemPrompt": "You may call calculator."}
    rollout = {"tools": {"functions": ["calculator"]}, "sampling": {"maxNewTokens": 200}, "contextLength": 512}
    result = tried(model, url, "--rows", "1", "-o", "json", data=data, **rollout)
    assert result.exit_code == Exit.OK, result.output
    (sample,) = json.loads(result.stdout)["samples"]
    assert [part["author"] for part in sample["segments"]] == ["model", "environment", "model"]
    assert "<|im_start|>tool\n9<|im_end|>" in sample["segments"][1]["text"]
    assert sample["reward"] == 1.0


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"generate": "own_generate:nothing"}, "own_generate has no nothing"),
        ({"generate": "absent:generate"}, "cannot import absent"),
    ],
)
def test_a_function_that_cannot_be_used_ends_with_the_code_of_a_run(model, engine, rollout, said):
    _, url = engine
    result = tried(model, url, **rollout)
    assert result.exit_code == Exit.BAD_INPUT
    assert said in result.stderr


def test_an_engine_that_refuses_and_one_that_is_not_there_are_distinguished(model, engine):
    fake, url = engine
    fake.status = 400
    refused = tried(model, url)
    assert (refused.exit_code, "400 too long" in refused.stderr) == (Exit.BAD_INPUT, True)
    gone = tried(model, "http://127.0.0.1:9")
    assert (gone.exit_code, "Cannot connect" in gone.stderr) == (Exit.LOST_PEER, True)


def test_people_read_that_a_run_would_end_and_programs_one_value_a_line():
    ending, going = (rollout_view.as_text(RolloutTrial((), ends)) for ends in (True, False))
    assert "a run would leave such samples out; reward.failureScore gives them a score instead" in text(ending)
    assert text(going).strip() == ""
    assert rollout_view.as_json(RolloutTrial((), True)).splitlines()[1] == '  "run_would_end": true,'
