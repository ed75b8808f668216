"""The command as a whole: its help, and what it can do without the trainer's packages."""

from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from support.api.bad_manifests import table
from support.cli.installed_extras import rljob

ROOT = Path(__file__).parents[3]


def with_base_dependencies(*arguments):
    return rljob("", ROOT, *arguments, given=table()["good"])


@pytest.mark.parametrize(
    "arguments", [["--help"], ["validate", "-"], ["plan", "-"], ["plan", "-", "-o", "json"], ["explain", "9"]]
)
def test_help_validate_plan_and_explain_need_only_the_base_dependencies(arguments):
    result = with_base_dependencies(*arguments)

    assert (result.returncode, result.stderr) == (Exit.OK, "")


def test_a_bad_manifest_is_refused_before_anything_of_the_trainer_is_needed(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("kind: RLJob")

    assert with_base_dependencies("run", str(path)).returncode == Exit.BAD_MANIFEST


def test_the_refusal_of_the_trainers_packages_is_real(tmp_path):
    result = with_base_dependencies("report", str(tmp_path))

    assert result.stderr == "this command needs the package jinja2: install rljob with its extra `trainer`\n"


@pytest.mark.parametrize("arguments", [["status"], ["top"], ["logs", "job"]])
def test_a_verb_that_needs_a_cluster_says_which_package_is_missing(arguments):
    result = with_base_dependencies(*arguments)

    assert (result.returncode, result.stdout) == (Exit.SETUP, "")
    assert result.stderr == "this command needs the package kubernetes: install rljob with its extra `cluster`\n"


def test_the_help_lists_verbs_examples_and_exit_codes():
    output = CliRunner().invoke(app, ["--help"]).stdout

    assert all(
        f"\n  {verb} " in output for verb in ("validate", "plan", "run", "report", "status", "top", "logs", "plot")
    )
    assert "\n    rljob plan job.yaml\n" in output
    assert all(f"\n    {code.value:>3}  {code.meaning}\n" in output for code in Exit)
    assert "..." not in output.partition("Commands:")[2].partition("Examples:")[0]


@pytest.mark.parametrize("verb", ["validate", "plan", "run", "report", "status", "top", "logs", "plot"])
def test_every_verb_has_an_example(verb):
    assert f"Example: rljob {verb} " in CliRunner().invoke(app, [verb, "--help"]).stdout


def test_the_version_is_shown():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (Exit.OK, f"rljob {metadata.version('rljob')}\n")


def test_a_path_that_is_no_run_is_not_taken_for_a_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["why", "runs/quickstart"])
    assert result.exit_code == Exit.USAGE
    assert "'runs/quickstart' is not the directory of a run" in result.output
