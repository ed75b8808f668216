"""`rljob inspect`: tables, JSON, exit codes."""

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from rljob_cli.records import inspect_view
from support.cli.without_the_model import without_the_model
from support.trainer.saved_run import checkpoint, damage, saved_run
from support.trainer.tiny_models import tiny


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
        [sys.executable, "-c", without_the_model(), "inspect", str(run)], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.OK, done.stderr


def quantised_model(directory: Path, *ignore: str) -> Path:
    """Write a checkpoint of two layers with experts in four bits, whose router and embedding are not quantised."""
    tensors = {"model.embed_tokens.weight": (64, 16), "lm_head.weight": (64, 16)}
    for layer in range(2):
        tensors |= {
            f"model.layers.{layer}.mlp.gate.weight": (4, 16),
            f"model.layers.{layer}.mlp.experts.0.up_proj.weight_packed": (8, 2),
        }
    directory.mkdir()
    save_file({name: np.zeros(axes, np.float32) for name, axes in tensors.items()}, directory / "model.safetensors")
    said = {"quant_method": "compressed-tensors", "ignore": ["lm_head", *ignore]}
    config = {"architectures": ["Glm4MoeForCausalLM"], "quantization_config": said}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_quantised_model_shows_what_its_list_lacks(tmp_path: Path):
    shown = inspected(quantised_model(tmp_path / "model"))
    assert shown.exit_code == Exit.BAD_INPUT
    assert "not quantised" in shown.stdout
    assert "does not ignore model.embed_tokens, model.layers.0.mlp.gate, model.layers.1.mlp.gate" in shown.stdout
    assert r'"re:.*mlp\\.gate(\\.weight)?$"' in shown.stdout


def test_a_complete_list_is_sound_and_programs_read_it(tmp_path: Path):
    model = quantised_model(tmp_path / "model", "model.embed_tokens", r"re:.*mlp\.gate\..*")
    shown = inspected(model, "-o", "json")
    assert shown.exit_code == Exit.OK
    (found,) = json.loads(shown.stdout)
    assert (found["kind"], found["tensors"], found["problems"], found["suggestion"]) == ("model", 6, [], [])


def test_a_configuration_that_cannot_be_read_is_refused_where_errors_go(tmp_path: Path):
    model = quantised_model(tmp_path / "model")
    (model / "config.json").write_text("{")
    shown = inspected(model)
    assert (shown.exit_code, shown.stdout) == (Exit.BAD_INPUT, "")
    assert " cannot be read: " in shown.stderr


@pytest.mark.parametrize("width", [20, 60])
def test_long_values_are_folded_and_not_cut(width: int):
    shown = StringIO()
    Console(file=shown, width=width).print(inspect_view._pairs(("file", "x" * 100), ("absent", None)))
    assert shown.getvalue().count("x") == 100
    assert set(shown.getvalue()) == set("file x\n")


def test_the_table_of_rollouts_has_a_heading_for_each_column(run):
    (heading,) = [line for line in inspected(run).stdout.splitlines() if line.split()[:2] == ["step", "rounds"]]
    assert heading.split() == ["step", "rounds", "prompts", "samples", "reward", "tokens", "state"]


def test_a_damaged_file_of_a_model_is_named(tmp_path: Path):
    model = quantised_model(tmp_path / "model")
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    shown = inspected(model)
    assert shown.exit_code == Exit.BAD_INPUT
    assert "cut off or damaged" in shown.stdout


def test_a_model_shows_what_would_be_quantised_and_the_list_that_engines_get(tmp_path: Path):
    model = tiny("Qwen3MoeForCausalLM", tmp_path / "model")
    shown = inspected(model)
    assert shown.exit_code == Exit.OK
    words = " ".join(shown.stdout.split())
    assert "with Fp8 or Int4 32 linear layers quantised: model.layers.*.self_attn.q_proj," in words
    listed = "ignore list model.embed_tokens, model.layers.*.mlp.gate, lm_head"
    assert f"model.layers.*.mlp.experts.*.down_proj {listed}" in words
    (found,) = json.loads(inspected(model, "-o", "json").stdout)
    gates = [f"model.layers.{layer}.mlp.gate" for layer in (0, 1)]
    assert found["ignored"] == ["model.embed_tokens", *gates, "lm_head"]
    assert "model.layers.1.mlp.experts.3.up_proj" in found["linear_layers"]
    assert found["formats"] == ["Fp8", "Int4"]


def test_a_model_whose_rows_groups_do_not_divide_can_only_be_in_fp8(tmp_path: Path):
    model = tiny("Qwen3ForCausalLM", tmp_path / "model", hidden_size=48, intermediate_size=48)
    assert "with Fp8 14 linear layers quantised" in " ".join(inspected(model).stdout.split())
    (found,) = json.loads(inspected(model, "-o", "json").stdout)
    assert found["formats"] == ["Fp8"]


def test_a_model_that_is_quantised_already_has_no_further_list(tmp_path: Path):
    shown = inspected(quantised_model(tmp_path / "model"), "-o", "json")
    (found,) = json.loads(shown.stdout)
    assert (found["formats"], found["linear_layers"], found["ignored"]) == ([], [], [])
    assert "with " not in inspected(tmp_path / "model").stdout
