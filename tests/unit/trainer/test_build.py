"""What is decided when a run is put together."""

from pathlib import Path

import pytest

from rljob_api.manifest import parse
from rljob_api.room import longest_prompt
from rljob_trainer.build import Address, check_resumable, metrics_port
from rljob_trainer.checkpoints import Checkpoint, CheckpointError, model_fingerprint
from tiny_models import tiny_llama
from whole_run import manifest


@pytest.mark.parametrize(
    ("context", "cache", "new", "longest"),
    [(64, 8192, 5, 57), (64, 8192, 1, 57), (4096, 8192, 2048, 2046), (40960, 8192, 100, 8090), (512, None, 8, 502)],
)
def test_a_prompt_leaves_room_for_its_response_and_for_what_the_engine_keeps(context, cache, new, longest):
    assert longest_prompt(context, cache, new) == longest


@pytest.mark.parametrize(
    ("model", "precision", "said"),
    [
        ("other", "fp32", "began with another model"),
        ("this", "bf16", "written in fp32, and the manifest asks for bf16"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(model, precision, said):
    saved = Checkpoint(
        step=1, prompts=(0, 8), data_fingerprint="", layout="tensor 1", model="this", precision="fp32", files={}
    )
    check_resumable(Path("iter_0000001"), saved, "this", "fp32")
    with pytest.raises(CheckpointError, match=said):
        check_resumable(Path("iter_0000001"), saved, model, precision)


def test_models_of_one_shape_are_told_apart_by_their_weights(tmp_path):
    first, second = (tiny_llama(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    assert model_fingerprint(first) == model_fingerprint(tiny_llama(tmp_path / "c", seed=1))
    assert model_fingerprint(first) != model_fingerprint(second)


@pytest.mark.parametrize(("named", "port"), [(0, 8644), (9100, 9100)])
def test_the_manifest_s_metrics_port_goes_before_the_one_of_the_command_line(named, port, tmp_path):
    spec = parse(manifest(tmp_path, tmp_path, runtime={"metricsPort": named})).spec
    assert metrics_port(spec, Address("0.0.0.0", 8643, metrics_port=8644)) == port
