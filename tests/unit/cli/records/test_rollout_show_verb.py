"""`rljob rollout show`: tables, pages, one sample turn by turn and token by token, JSON, errors."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_cli.records import trajectory_view
from rljob_trainer.rundir.rollout_files import Dump
from rljob_trainer.samples import Answer, Branch, Group, Prompt, Sample, ScoredGroup, Segment
from support.cli.without_the_model import without_the_model

PROMPT = Prompt("0:17", "19 * 21", "", (), "399", {})
SESSION = Sample(
    tokens_T=(10, 11, 20, 12),
    logprobs_T=(-0.25, -0.75, 0.0, -0.125),
    text="calculate 19 * 21 399",
    version=6,
    finish_reason="stop",
    engine="engine-0",
    segments=(Segment(2, "calculate 19 * 21", True), Segment(1, "\x1b[2J399", False), Segment(1, "It is 399", True)),
    carried=((5, 1), (6, 3)),
    branches=(Branch((1, 2, 3), "What is 19 * 21?", 4),),
    reward=1.0,
    answers=(
        Answer(0, 2, "stop", "engine-0", began=50.0, seconds=1.5, calls=("calculator",)),
        Answer(3, 1, "stop", "engine-0", began=51.75, seconds=0.5),
    ),
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run that has kept steps 4 and 5, the last with two samples."""
    dump = Dump(tmp_path / "run" / "rollouts").rewind(0, {})
    cut = replace(SESSION, finish_reason="length", dropped=True, reward=None, text="cut")
    dump.write(4, [[ScoredGroup(Group(PROMPT, (SESSION,)), (1.0,))]], {})
    dump.write(5, [[ScoredGroup(Group(PROMPT, (SESSION, cut)), (1.0, 0.0))]], {})
    return tmp_path / "run"


def shown(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["rollout", "show", *map(str, arguments)])


def lines(result: Result) -> list[str]:
    assert result.exit_code == Exit.OK, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines() if line.strip()]


def test_the_last_step_is_a_table(run: Path) -> None:
    assert lines(shown(run)) == [
        "sample prompt turns calls branches tokens trained reward ended weights engine seconds",
        "0 0:17 2 1 1 4 3 1 stop 5+6 engine-0 2.25",
        "1 0:17 2 1 1 4 dropped 0 cut off 5+6 engine-0 2.25",
        "step 5, samples 0 to 1 of 2",
        "kept: 2 steps, 4 to 5",
    ]
    assert "step 4, samples 0 to 0 of 1" in lines(shown(run, "--step", 4))


def test_a_table_has_pages(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_view, "ROWS", 1)
    first, second, third = (lines(shown(run, "--page", number)) for number in (1, 2, 3))
    assert first[1].startswith("0 ") and first[2] == "step 5, samples 0 to 0 of 2; --page 2 shows more"
    assert second[1].startswith("1 ") and second[2] == "step 5, samples 1 to 1 of 2"
    assert third[1:] == ["step 5 has 2 samples", "kept: 2 steps, 4 to 5"]


def test_a_sample_is_shown_turn_by_turn(run: Path) -> None:
    assert lines(shown(run, "--sample", 0)) == [
        "step 5, sample 0, prompt 0:17, label 399, reward 1, 2 turns, 1 branch, stop, 3 tokens are trained on,"
        " 2.25 s, 2.00 s of them the model's",
        "prompt: 3 tokens",
        "What is 19 * 21?",
        "model: 2 tokens, weights 5 (1) then 6 (1), mean log-probability -0.5000;"
        " asked at 0.00 s, 1.50 s by engine-0, calls calculator",
        "calculate 19 * 21",
        "environment: 1 token",
        r"\x1b[2J399",
        "model: 1 token, weights 6, mean log-probability -0.1250; asked at 1.75 s, 0.50 s by engine-0",
        "It is 399",
    ]
    (first, *rest) = lines(shown(run, "--sample", 1))
    assert "cut off (length), dropped, not trained on" in first
    assert any("mean log-probability -0.1250, not trained on" in line for line in rest)


def test_a_long_text_is_shortened_and_json_has_it(tmp_path: Path) -> None:
    text = "a" * 5000 + "the middle" + "b" * 5000
    sample = replace(SESSION, segments=(Segment(4, text, True),))
    Dump(tmp_path).rewind(0, {}).write(0, [[ScoredGroup(Group(PROMPT, (sample,)), (1.0,))]], {})
    said = shown(tmp_path, "--sample", 0).stdout
    assert "[6010 characters; --output json has them]" in said and "the middle" not in said
    assert json.loads(shown(tmp_path, "--sample", 0, "-o", "json").stdout)["parts"][1]["text"] == text


def test_a_sample_is_shown_token_by_token_in_pages(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = lines(shown(run, "--sample", 0, "--tokens"))
    assert found[1:] == [
        "place author token log-probability weights trained on",
        *("0 prompt 1", "1 prompt 2", "2 prompt 3"),
        *("3 model 10 -0.25000 5 yes", "4 model 11 -0.75000 6 yes", "5 environment 20", "6 model 12 -0.12500 6 yes"),
        "tokens 0 to 6 of 7",
    ]
    monkeypatch.setattr(trajectory_view, "TOKENS", 4)
    assert lines(shown(run, "--sample", 0, "--tokens"))[-1] == "tokens 0 to 3 of 7; --page 2 shows more"
    assert lines(shown(run, "--sample", 0, "--tokens", "--page", 2))[2:] == [
        *("4 model 11 -0.75000 6 yes", "5 environment 20", "6 model 12 -0.12500 6 yes"),
        "tokens 4 to 6 of 7",
    ]
    assert lines(shown(run, "--sample", 0, "--tokens", "--page", 3))[-1] == "there are 7 tokens"


def test_programs_read_a_page_and_a_sample(run: Path) -> None:
    page = json.loads(shown(run, "-o", "json").stdout)
    assert page["kept"] == {"first": 4, "last": 5, "steps": 2}
    assert (page["step"], page["page"], page["of"]) == (5, 1, 2)
    assert [(each["number"], each["turns"], each["cut_off"]) for each in page["samples"]] == [
        (0, 2, False),
        (1, 2, True),
    ]
    sample = json.loads(shown(run, "--sample", 0, "-o", "json").stdout)
    assert (sample["step"], sample["reward"], sample["label"]) == (5, 1.0, "399")
    assert sample["parts"][1] == {
        "author": "model",
        "branch": 0,
        "text": "calculate 19 * 21",
        "tokens_T": [10, 11],
        "logprobs_T": [-0.25, -0.75],
        "versions": [[5, 1], [6, 1]],
        "trained": True,
        "answers": [
            {
                "begin": 0,
                "tokens": 2,
                "finish_reason": "stop",
                "engine": "engine-0",
                "began": 50.0,
                "seconds": 1.5,
                "calls": ["calculator"],
            }
        ],
    }


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    sample = replace(SESSION, logprobs_T=(-math.inf, math.nan, 0.0, -0.125))
    Dump(tmp_path).rewind(0, {}).write(0, [[ScoredGroup(Group(PROMPT, (sample,)), (1.0,))]], {})
    assert json.loads(shown(tmp_path, "--sample", 0, "-o", "json").stdout)["parts"][1]["logprobs_T"] == [None, None]


def test_what_is_not_there_is_named_with_what_is(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ((tmp_path / "empty",), "has kept no samples; spec.debug.dumpRollouts: true keeps the samples of each step"),
        ((tmp_path / "rum",), f"nearest: {run}"),
        ((run, "--step", 9), "step 9 is not there"),
        ((run, "--sample", 2), "has 2 samples, and no sample 2; nearest valid: 1"),
    ):
        done = shown(*arguments)
        assert done.exit_code == Exit.BAD_INPUT
        assert words in done.stderr.replace("\n", ""), done.stderr
        assert done.stdout == ""


def test_tokens_without_a_sample_are_a_mistake(run: Path) -> None:
    done = shown(run, "--tokens")
    assert done.exit_code == Exit.USAGE
    assert "add --sample N" in done.stderr


def test_a_damaged_file_is_an_error_and_no_table(run: Path) -> None:
    path = run / "rollouts" / "step-0000005.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-20])
    done = shown(run)
    assert (done.exit_code, done.stdout) == (Exit.BAD_INPUT, "")
    assert "step-0000005.jsonl.zst" in done.stderr


def test_nothing_of_a_model_is_needed(run: Path) -> None:
    words = [sys.executable, "-c", without_the_model(), "rollout", "show", str(run)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "samples 0 to 1 of 2" in done.stdout) == (Exit.OK, True), done.stderr
