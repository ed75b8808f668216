"""What the machine lacks is found before anything starts."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from rljob_api.exits import Exit
from rljob_api.reading.manifest import parse
from rljob_api.sizing.model_shape import shape
from rljob_cli.main import app
from rljob_trainer.preflight import look_at_machine
from rljob_trainer.preflight.findings import Findings
from rljob_trainer.preflight.machine import Machine, checkpoint_bytes, judge_machine
from rljob_trainer.preflight.model_files import model_files
from rljob_trainer.preflight.weights import judge_weights, read_weights
from support.trainer.preflight_place import SECOND, Place
from support.trainer.tiny_models import FAMILIES
from support.trainer.whole_run import manifest


@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_files_of_every_family_are_found_whole(family: str, tmp_path: Path):
    directory = FAMILIES[family](tmp_path, tied=False)
    config = json.loads((directory / "config.json").read_text())
    assert judge_weights(read_weights(directory, config)) == Findings()

    tensors = load_file(directory / "model.safetensors")
    lost = next(name for name in reversed(tensors) if "layers.1" in name)
    save_file({name: tensors[name] for name in tensors if name != lost}, directory / "model.safetensors")
    found = judge_weights(read_weights(directory, config))
    assert [f"the files lack {lost} is" in str(problem) for problem in found.problems] == [True]


def judged(place: Place, free: int, *, there: int = 0, taken: tuple[int, ...] = (), **spec: Any):
    job = parse(manifest(place.model, place.root, **spec))
    model = shape(json.loads((place.model / "config.json").read_text()))
    return judge_machine(job.spec, model, Machine(free, there, taken)), checkpoint_bytes(job.spec, model)


def test_a_disk_without_room_for_its_checkpoints_is_refused_with_as_many_as_fit(place: Place):
    _, one = judged(place, 0)
    assert judged(place, 6 * one, checkpoint={"keep": 5})[0].problems == ()
    ((problem,), one) = judged(place, 6 * one - 1, checkpoint={"keep": 5})[0].problems, one
    assert str(problem).startswith("spec.checkpoint.keep: 5 and one in the making are 6 x ")
    assert problem.nearest == "4"
    assert judged(place, one, there=5 * one, checkpoint={"keep": 5})[0].problems == ()
    assert judged(place, one)[0].problems[0].nearest == "a checkpoint.directory on another disk"
    assert judged(place, 0, debug={"rolloutOnly": True})[0].problems == ()


def test_a_checkpoint_in_bf16_has_master_weights_besides(place: Place):
    _, fp32 = judged(place, 0)
    _, bf16 = judged(place, 0, training={"precision": "bf16"})
    assert bf16 * 12 == fp32 * 14


def test_a_port_in_use_is_refused(place: Place):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        job = parse(manifest(place.model, place.root, runtime={"metricsPort": port}))
        (problem,) = look_at_machine(job, model_files(str(place.model)), place.root / "run").problems
        ours = look_at_machine(job, model_files(str(place.model)), place.root / "run", has_leftovers=True)
    assert str(problem).startswith(f"spec.runtime.metricsPort: {port} is in use by another program here")
    assert ours.problems == (), "a killed run's own processes are ended before it starts again"
    assert look_at_machine(job, None, place.root / "run").problems == ()


def test_a_run_does_not_train_on_the_rollouts_of_its_own_directory(place: Place):
    job = parse(manifest(place.model, place.root, debug={"replay": str(place.root / "run" / "rollouts")}))
    (problem,) = look_at_machine(job, None, place.root / "run").problems
    assert "is in this run's own directory" in str(problem)


@pytest.mark.parametrize("verb", ["validate", "plan", "run"])
def test_every_verb_refuses_before_anything_is_started(place: Place, verb: str):
    (place.model / SECOND).unlink()
    job = place.root / "job.yaml"
    job.write_text(json.dumps(manifest(place.model, place.root)))

    result = CliRunner().invoke(app, [verb, str(job)])

    assert result.exit_code == Exit.BAD_INPUT
    assert f"{SECOND}" in result.output
    assert not (place.root / "run" / "events.jsonl").exists()
