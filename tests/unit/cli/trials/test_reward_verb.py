"""`rljob reward test`: what a reward says of given responses, and whether a run would go on."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_cli.trials.reward_view import as_json
from rljob_trainer.assembly.reward_trial import Trial, Verdict
from support.cli.without_the_model import without_the_model
from support.trainer.judging import write_module

ROOT = Path(__file__).parents[4]
GOOD = yaml.safe_load((ROOT / "docs/examples/own-data.yaml").read_text())
ROWS = [{"prompt": f"{n} + 1 =", "answer": str(n + 1), "level": n} for n in range(8)]
JUDGES = """
def judge(question, response, label, metadata):
    print("judging", response)
    if response == "fail":
        raise ValueError("no judgement")
    return float(response == label) + metadata["level"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a directory with data and judges; the verb changes the search path and the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    write_module(tmp_path, JUDGES)
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))


def manifest(reward: dict[str, object]) -> str:
    data = {"train": {"jsonl": "rows.jsonl"}, "inputKey": "prompt", "labelKey": "answer"}
    return yaml.safe_dump(GOOD | {"spec": GOOD["spec"] | {"data": data, "reward": reward}})


def tried(reward: dict[str, object], *arguments: str) -> Result:
    return CliRunner().invoke(app, ["reward", "test", "-", *arguments], input=manifest(reward))


def verdicts(result: Result) -> list[tuple[int, str, float | None]]:
    return [(each["row"], each["response"], each["reward"]) for each in json.loads(result.stdout)["responses"]]


PYTHON = {"kind": "Python", "function": "judges:judge"}
EXACT = {"kind": "ExactMatch"}


def test_the_label_and_nothing_are_judged_where_no_response_is_given():
    result = tried(EXACT, "--rows", "2", "-o", "json")
    assert result.exit_code == Exit.OK
    assert verdicts(result) == [(0, "1", 1.0), (0, "", 0.0), (1, "2", 1.0), (1, "", 0.0)]


def test_a_function_is_found_in_the_present_directory_and_gets_the_row():
    result = tried(PYTHON, "--rows", "2", "--response", "2", "--response", "9", "-o", "json")
    assert verdicts(result) == [(0, "2", 0.0), (0, "9", 0.0), (1, "2", 2.0), (1, "9", 1.0)]
    assert result.stderr == "judging 2\njudging 9\njudging 2\njudging 9\n"


def test_a_file_has_responses_for_each_row():
    Path("responses.jsonl").write_text('"1"\n["2", "\u2028 9"]\n')
    result = tried(EXACT, "--responses", "responses.jsonl", "-o", "json")
    assert verdicts(result) == [(0, "1", 1.0), (1, "2", 1.0), (1, "\u2028 9", 0.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"1"\n2\n', "responses.jsonl:2: a JSON text or a list of texts is wanted, found 2"),
        ("[]\n", "responses.jsonl:1: a JSON text or a list of texts is wanted, found []"),
        ('1"\n', "responses.jsonl:1: not JSON: Extra data"),
        ("", "responses.jsonl: no responses"),
        ('"1"\n' * 9, "responses.jsonl: 9 lines, but data.train has 8 rows"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported(text: str, said: str):
    Path("responses.jsonl").write_text(text)
    result = tried(EXACT, "--responses", "responses.jsonl")
    assert result.exit_code == Exit.BAD_INPUT
    assert result.stderr.startswith(said)


def test_times_are_in_the_json_to_the_microsecond_and_texts_as_they_are():
    verdict = Verdict(0, "größer?", "ja", "“ja”", {"right": 1.0}, {}, 1.0)
    shown = as_json(Trial((verdict,), {"right": 0.00300049}, ()))
    assert json.loads(shown) == {
        "run_would_end": False,
        "seconds": {"right": 0.003},
        "responses": [asdict(verdict)],
    }
    assert json.loads(as_json(Trial((), {"right": 0.0030005}, ())))["seconds"] == {"right": 0.003001}
    assert "“ja”" in shown and shown.startswith('{\n  "run_would_end": false,')


def test_each_part_and_the_sum_are_shown():
    parts = [{"name": "right", "kind": "ExactMatch", "weight": 2}, {"name": "words", "kind": "F1"}]
    result = tried({"parts": parts}, "--rows", "1", "--response", "1 or 2")
    assert re.search(r"response +right +words +reward\n0 +0 \+ 1 = +1 +1 or 2 +0 +0.5 +0.5\n", result.stdout)


def test_a_response_that_cannot_be_judged_ends_a_run_and_the_others_are_judged_all_the_same():
    result = tried(PYTHON, "--rows", "1", "--response", "fail", "--response", "1")
    assert result.exit_code == Exit.BAD_INPUT
    assert "judges:judge failed on prompt 0: ValueError: no judgement" in result.stdout
    assert "a run would leave such responses out" in result.stdout
    assert re.search(r"fail +failed\n.* 1 +1\n", result.stdout)
    assert "ValueError: no judgement" in result.stderr


def test_a_failure_with_a_score_does_not_end_a_run():
    result = tried(PYTHON | {"failureScore": -1}, "--rows", "1", "--response", "fail", "--response", "1", "-o", "json")
    assert result.exit_code == Exit.OK
    assert verdicts(result) == [(0, "fail", -1.0), (0, "1", 1.0)]
    assert "no judgement" in json.loads(result.stdout)["responses"][0]["failures"]["reward"]


def test_when_everything_fails_a_run_ends_whatever_a_failure_is_worth():
    result = tried(PYTHON | {"failureScore": -1}, "--rows", "2", "--response", "fail")
    assert result.exit_code == Exit.BAD_INPUT
    assert "reward failed on every response: a run would end at its first step, with any failureScore" in result.stdout


@pytest.mark.parametrize(
    ("reward", "code", "said"),
    [
        ({"kind": "Python", "function": "no_such:judge"}, Exit.BAD_INPUT, "cannot import no_such"),
        ({"kind": "Python"}, Exit.BAD_MANIFEST, "spec.reward.function: is missing"),
    ],
)
def test_what_a_run_would_refuse_is_refused_with_its_exit_code(reward: dict[str, object], code: Exit, said: str):
    result = tried(reward)
    assert (result.exit_code, said in result.stderr) == (code, True)


def test_rows_that_cannot_be_read_are_reported():
    Path("rows.jsonl").write_text('{"prompt": "?"}\n')
    result = tried(EXACT)
    assert (result.exit_code, "rows.jsonl:1" in result.stderr) == (Exit.BAD_INPUT, True)


def test_responses_are_given_in_one_way():
    Path("responses.jsonl").write_text('"1"\n')
    assert tried(EXACT, "--response", "1", "--responses", "responses.jsonl").exit_code == Exit.USAGE


def test_nothing_of_a_model_is_loaded():
    command = [
        sys.executable,
        "-c",
        without_the_model("numpy"),
        "reward",
        "test",
        "-",
        "--rows",
        "1",
        "--response",
        "1",
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("crds", "operator", "trainer")),
    }
    both = {"parts": [PYTHON | {"name": "own"}, {"name": "math", "kind": "Math"}]}
    result = subprocess.run(command, input=manifest(both), env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.splitlines()[1].split()[-3:]) == (Exit.OK, ["1", "1", "2"]), result.stderr
