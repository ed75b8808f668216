"""`rljob inspect`: tables, JSON, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from support.trainer.saved_run import checkpoint, damage, saved_run

WITHOUT_THE_MODEL = """
import sys

ABSENT = {"torch", "ray", "sglang", "megatron", "transformers"}


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"nothing of a model is needed here: {name}", name=name)


sys.meta_path.insert(0, Refuse())
from rljob_cli.main import main
main()
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return saved_run(tmp_path / "run", steps=5, interval=2)


def inspected(*arguments: object):
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def test_people_read_what_the_files_hold(run):
    shown = inspected(run)
    assert shown.exit_code == Exit.OK
    for words in (
        "tensor 1 x pipeline 1 x data 2",
        "__0_0.distcp",
        "10 issued, 10 consumed, 8 committed",
        "step 4 in iter_0000004",
        "Q: 8 + 1 =",
        "0.75",
    ):
        assert words in shown.stdout


def test_programs_read_the_same(run):
    found = json.loads(inspected(run, "-o", "json").stdout)
    assert [facts["kind"] for facts in found] == ["checkpoint", "checkpoint", "journal", "rollouts"]
    assert found[0]["files"][0] == {"name": "__0_0.distcp", "size": 7, "state": "verified"}
    assert found[2]["commits"] == [[2, "iter_0000002"], [4, "iter_0000004"]]
    assert found[3]["steps"][0]["reward"] == 0.75


def test_damage_has_an_exit_code_and_is_named(run):
    damage(run, 4)
    shown = inspected(checkpoint(run, 4))
    assert shown.exit_code == Exit.BAD_INPUT
    assert "damaged: " in shown.stdout
    assert "changed files ['__0_0.distcp']" in shown.stdout


@pytest.mark.parametrize(("wrong", "code"), [("nowhere", Exit.USAGE), ("empty", Exit.BAD_INPUT)])
def test_a_wrong_path_is_reported_with_what_was_looked_for(tmp_path, wrong, code):
    (tmp_path / "empty").mkdir()
    shown = inspected(tmp_path / wrong)
    assert shown.exit_code == code
    assert "looked for a checkpoint (iter_*/), journal.jsonl" in shown.stderr


def test_nothing_of_a_model_is_imported(run):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_MODEL, "inspect", str(run)], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.OK, done.stderr
