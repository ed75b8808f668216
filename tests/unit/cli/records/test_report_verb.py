"""`rljob report`: the page, the summary, the exit codes."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.records.report import report
from rljob_trainer.reporting.records import CheckRecord
from support.trainer.synthetic_run import SyntheticRun, finished_run

app = typer.Typer()
app.command()(report)
runner = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("run"))


def test_the_page_is_written_and_its_path_is_the_last_line(run: Path) -> None:
    result = runner.invoke(app, [str(run)])
    assert result.exit_code == Exit.OK
    assert Path("".join(result.output.splitlines()[-1])) == run / "report.html"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    "text",
    [
        "held-out accuracy 0.11 → 0.59 (greedy 0.37 → 0.65)",
        "on longer 0.06 → 0.30 (greedy 0.18 → 0.33)",
        "36 of 36",
        "5m29s, 2 driver starts",
        "85.2% of 5.5 min in steps that count; redone 6%, start 4%",
        "rollout 45.5%",
        "rollout 231, train 2403",
        "engine-1 at step 14: ProcessExited, back after 21s",
        "engine-0 at step 31: ProbeFailed, not back",
    ],
)
def test_the_summary_says(run: Path, text: str) -> None:
    assert text in " ".join(runner.invoke(app, [str(run)]).output.split())


def test_programs_get_json(run: Path) -> None:
    content = json.loads(runner.invoke(app, [str(run), "-o", "json"]).stdout)
    assert content["accuracy_before"] == {
        "step": 0,
        "sampled": 0.11,
        "greedy": 0.37,
        "n": 100,
        "sets": {"longer": {"sampled": 0.06, "greedy": 0.18, "n": 50}},
    }
    assert content["accuracy_after"]["sampled"] == 0.59
    assert [failure["engine"] for failure in content["engine_failures"]] == ["engine-1", "engine-0"]
    assert content["report"] == str(run / "report.html")
    assert (content["perplexity_before"], content["perplexity_after"]) == (None, None)
    assert "Mismatch" in {finding["name"] for finding in content["findings"]}
    assert content["reward_failures"] == 0


def test_a_run_that_goes_on_can_be_reported(tmp_path: Path) -> None:
    SyntheticRun(tmp_path).take(1)
    result = runner.invoke(app, [str(tmp_path)])
    assert result.exit_code == Exit.OK
    assert "not finished" in result.output


def test_a_failed_run_says_why_and_what_its_first_step_had_shown(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    checks = [CheckRecord(name="perplexity", value=value, limit=3.0, means="Not loaded.") for value in (2.0, 48.25)]
    run.report.first_step("abc", checks, ())
    run.take(1)
    run.report.end("failed", "RewardError: no idea")
    output = " ".join(runner.invoke(app, [str(tmp_path)]).output.split())
    assert "failed" in output
    assert "reason RewardError: no idea" in output
    assert output.count("perplexity: ") == 1
    assert "first step perplexity: 48.2, most often at most 3" in output
    assert json.loads(runner.invoke(app, [str(tmp_path), "-o", "json"]).stdout)["message"] == "RewardError: no idea"
    assert "RewardError: no idea" in (tmp_path / "report.html").read_text()


def test_a_directory_that_is_no_run_is_bad_input(tmp_path: Path) -> None:
    result = runner.invoke(app, [str(tmp_path)])
    assert result.exit_code == Exit.BAD_INPUT
    assert "is not a run: it has no events.jsonl" in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_damaged_events_are_bad_input_and_say_where(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("nonsense\n")
    result = runner.invoke(app, [str(tmp_path)])
    assert result.exit_code == Exit.BAD_INPUT
    assert "events.jsonl:1: not a record" in result.stderr
