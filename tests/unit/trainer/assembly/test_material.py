"""What a run works on is checked before anything starts."""

from pathlib import Path

import pytest

from rljob_trainer.assembly.material import check_resumable
from rljob_trainer.rundir.checkpoints import Checkpoint, CheckpointError, model_fingerprint
from support.trainer.tiny_models import tiny_llama


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


def test_models_of_one_shape_are_distinguished_by_their_weights(tmp_path):
    first, second = (tiny_llama(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    assert model_fingerprint(first) == model_fingerprint(tiny_llama(tmp_path / "c", seed=1))
    assert model_fingerprint(first) != model_fingerprint(second)
