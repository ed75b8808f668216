"""`rljob import`: the manifest to stdout, the summary to stderr, an exit code for scripts."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app

ARGUMENTS = """ARGS=(
  --hf-checkpoint ${BASE}/m
  --prompt-data d.jsonl
  --rm-type math
  --num-rollout 10
  --rollout-batch-size 4
  --n-samples-per-prompt 4
  --rollout-max-response-len 64
  --lr 1e-6
  --lr-decay-style constant
)
"""
LAUNCH = "python3 train.py --colocate ${ARGS[@]}"
DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "from-slime.md").read_text()


def rljob(*arguments, stdin=None):
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "scripts" / "models").mkdir(parents=True)
    (tmp_path / "scripts" / "models" / "m.sh").write_text("MODEL_ARGS=(--num-layers 36)\n")
    path = tmp_path / "scripts" / "run-Qwen3_4B.sh"
    path.write_text(f'{ARGUMENTS}source "${{SLIME}}/scripts/models/m.sh"\n{LAUNCH} ${{MODEL_ARGS[@]}}\n')
    return path


def test_an_imported_manifest_passes_validate(script, tmp_path):
    made = rljob("import", script, "--set", "BASE=/models")
    (tmp_path / "job.yaml").write_text(made.stdout)

    assert made.exit_code == Exit.OK
    assert "    checkpoint: /models/m  # --hf-checkpoint /models/m, line 2\n" in made.stdout
    assert "  name: qwen3-4b\n" in made.stdout
    assert rljob("validate", tmp_path / "job.yaml").exit_code == Exit.OK


def test_the_summary_counts_what_is_no_field(script):
    made = rljob("import", script)

    said = f"{script}: 11 arguments: 1 not known, 1 not needed; the manifest is valid\n"
    assert made.stderr == said


def test_a_sourced_file_is_found_above_the_script(script):
    assert "--num-layers 36, m.sh line 1" in rljob("import", script).stdout


def test_a_problem_that_is_left_is_printed_with_its_origin(script):
    script.write_text(script.read_text().replace("--n-samples-per-prompt 4", "--n-samples-per-prompt 1"))

    made = rljob("import", script)

    assert made.exit_code == Exit.BAD_MANIFEST
    assert "spec.rollout.samplesPerPrompt: 1 is less than 2" in made.stderr
    assert "(from --n-samples-per-prompt 1, line 7)" in made.stderr
    assert "# Not valid yet:\n" in made.stdout


def test_stdin_is_a_script_too(script):
    made = rljob("import", "-", stdin=f"{ARGUMENTS}{LAUNCH}\n")

    assert made.exit_code == Exit.OK
    assert made.stdout.startswith("# Imported from stdin.")


def test_a_script_without_a_training_is_bad_input(tmp_path):
    (tmp_path / "x.sh").write_text("ls\n")

    made = rljob("import", tmp_path / "x.sh")

    assert (made.exit_code, made.stdout) == (Exit.BAD_INPUT, "")
    assert "starts no training; looked for" in made.stderr


@pytest.mark.parametrize("assigned", ["BASE", "1=2", "=x"])
def test_a_variable_needs_name_and_value(script, assigned):
    made = rljob("import", script, "--set", assigned)

    assert made.exit_code == Exit.USAGE
    assert "write NAME=VALUE" in made.stderr


def test_the_example_of_the_documentation_has_its_real_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts" / "models").mkdir(parents=True)
    model = "MODEL_ARGS=(\n  --num-layers 36\n  --hidden-size 2560\n)\n"
    (tmp_path / "scripts" / "models" / "qwen3-4B.sh").write_text(model)
    (tmp_path / "run.sh").write_text(PAGE.partition("```bash\n")[2].partition("```")[0])
    made = rljob("import", "run.sh", "--set", "MODELS=/models")
    shown = PAGE.partition("MODELS=/models > job.yaml\n")[2].partition("```")[0]

    printed = f"{made.stderr}$ cat job.yaml\n...\n{made.stdout}".splitlines()
    assert [line for line in shown.splitlines() if line not in printed] == []


@pytest.mark.parametrize(("page", "language", "name"), [("verl", "bash", "run.sh"), ("nemo-rl", "yaml", "grpo.yaml")])
def test_the_examples_of_other_systems_have_their_real_output(page, language, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"from-{page}.md").read_text()
    Path(name).write_text(text.partition(f"```{language}\n")[2].partition("```")[0])

    assert text.partition("> job.yaml\n")[2].partition("```")[0] == rljob("import", name).stderr


def test_a_yaml_file_is_a_configuration(tmp_path):
    (tmp_path / "base.yaml").write_text("grpo: {num_prompts_per_step: 4}\n")
    (tmp_path / "job.yaml").write_text("defaults: base.yaml\npolicy: {model_name: m}\n")

    made = rljob("import", tmp_path / "job.yaml")

    assert "    promptsPerStep: 4  # grpo.num_prompts_per_step: 4, base.yaml line 1\n" in made.stdout
    assert made.exit_code == Exit.BAD_MANIFEST


def test_a_manifest_becomes_flags_of_slime_and_comes_back(script, tmp_path):
    (tmp_path / "job.yaml").write_text(rljob("import", script, "--set", "BASE=/models").stdout)
    made = rljob("export", "slime", tmp_path / "job.yaml")
    (tmp_path / "again.sh").write_text(made.stdout)

    assert made.exit_code == Exit.OK
    assert "   --rollout-batch-size 4 \\\n" in made.stdout
    assert "    promptsPerStep: 4  # --rollout-batch-size 4, line " in rljob("import", tmp_path / "again.sh").stdout


def test_a_manifest_with_problems_is_not_exported(tmp_path):
    (tmp_path / "job.yaml").write_text("kind: RLJob\n")

    made = rljob("export", "slime", tmp_path / "job.yaml")

    assert (made.exit_code, made.stdout) == (Exit.BAD_MANIFEST, "")
    assert "spec: is missing" in made.stderr


def test_the_help_of_export_is_plain_text():
    """rich would draw boxes, which readers of a pipe do not want."""
    shown = CliRunner().invoke(app, ["export", "--help"])
    assert shown.exit_code == Exit.OK and "Write a manifest for another system." in shown.stdout
    assert shown.stdout.isascii() and "Commands:" in shown.stdout


def test_a_script_that_grows_without_end_is_bad_input(tmp_path):
    (tmp_path / "x.sh").write_text("A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "source y.sh\n")

    made = rljob("import", tmp_path / "x.sh")

    assert made.exit_code == Exit.BAD_INPUT
    assert "too large to be read: line 18: the variable A has more than 1048576 characters" in made.stderr


def test_stdin_is_read_up_to_the_limit_of_a_file():
    assert "stdin has more than 1048576 bytes" in rljob("import", "-", stdin="x" * 2**21).stderr
