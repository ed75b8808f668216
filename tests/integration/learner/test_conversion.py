"""`rljob convert`: weights come back bit by bit, whatever layout saved them, and a fault on the way is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.exits import Exit
from rljob_trainer.rundir.checkpoints import Checkpoint, digests_of, model_fingerprint, sealed
from support.cli.command import rljob
from support.trainer.conversion_scenarios import convert, convert_each_there_and_back, convert_wrongly, verb
from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import train_save_train
from support.trainer.tiny_models import CASES, FAMILIES, DType, tiny, tiny_llama

FURTHER = {
    ("glm4_moe with a further layer", False, "bfloat16"): "Glm4MoeForCausalLM",
    ("deepseek_v3 with a further layer", False, "bfloat16"): "DeepseekV3ForCausalLM",
}


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def assert_same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def sealed_checkpoint(directory: Path, original: Path) -> Path:
    """Make a learner's checkpoint one of a run."""
    manifest = Checkpoint(
        step=1,
        prompts=(0, 8),
        data_fingerprint="abc",
        layout="any",
        model=model_fingerprint(original),
        precision="fp32",
        files=digests_of(directory),
    )
    (directory / "rljob.json").write_bytes(sealed(manifest))
    return directory


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool, str], tuple[Path, list[Any]]]:
    """Return the directory of each family, and what came of it there and back; they share a process."""
    root = tmp_path_factory.mktemp("families")
    dtypes: tuple[DType, ...] = ("float32", "bfloat16")
    sources = {
        (family, tied, dtype): FAMILIES[family](root / f"{family}-{tied}-{dtype}", tied=tied, dtype=dtype)
        for family, tied in CASES
        for dtype in dtypes
    }
    named = {"tied": False, "dtype": "bfloat16", "num_nextn_predict_layers": 1}
    sources |= {case: tiny(model, root / f"further-{model}", **named) for case, model in FURTHER.items()}
    (done,) = run_ranks(convert_each_there_and_back, 1, list(sources.values()), timeout_s=240.0)
    return dict(zip(sources, zip(sources.values(), done, strict=True), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{'tied' if case[1] else 'untied'}")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_and_back_changes_no_bit(
    converted: dict[tuple[str, bool, str], tuple[Path, list[Any]]], case: tuple[str, bool], dtype: str
) -> None:
    source, (there, back) = converted[*case, dtype]
    assert_same_bits(weights(source), weights(back.path))
    assert there.tensors == back.tensors == len(weights(source))
    assert (there.precision, back.precision) == (("fp32",) * 2 if dtype == "float32" else ("bf16",) * 2)
    assert (back.path / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert not list(back.path.parent.glob("*.draft"))


@pytest.mark.parametrize("case", FURTHER, ids=str)
def test_layers_that_are_not_trained_come_back_from_the_original(
    converted: dict[tuple[str, bool, str], tuple[Path, list[Any]]], case: tuple[str, bool, str]
) -> None:
    source, (there, back) = converted[case]
    further = [name for name in weights(source) if name.startswith("model.layers.2.")]
    assert_same_bits(weights(source), weights(back.path))
    assert (there.untrained, there.left_out) == (len(further), ())
    assert there.tensors + len(further) == back.tensors == len(weights(source))
    assert json.loads((back.path / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "glm4"])
def test_a_checkpoint_that_several_ranks_have_saved_is_converted_by_one(tmp_path: Path, family: str) -> None:
    source = FAMILIES[family](tmp_path / "source", tied=False)
    config = learner_config(source, tensor=2, pipeline=2)
    saved = tmp_path / "run" / "checkpoints" / "iter_0000001"
    (_, trained), *_ = run_ranks(train_save_train, 4, config, saved, [sequences(8)], [])
    (done,) = run_ranks(convert, 1, sealed_checkpoint(saved, source), source, tmp_path / "hf")
    assert_same_bits(weights(done.path), trained)
    assert not torch.equal(weights(done.path)["lm_head.weight"], weights(source)["lm_head.weight"]), "it was trained"


@pytest.mark.parametrize("wrong", ["model.layers.0.self_attn.q_proj.weight", "model.norm.weight"])
def test_a_tensor_that_is_not_the_same_is_named_and_nothing_is_left(tmp_path: Path, wrong: str) -> None:
    source = tiny_llama(tmp_path / "source")
    ((there, back),) = run_ranks(convert_wrongly, 1, source, tmp_path, wrong)
    assert f"not the same as the checkpoint: {wrong} differs in " in there
    assert "not the same as the checkpoint: " in back
    assert sorted(path.name for path in tmp_path.iterdir()) == ["right", "source"]


def test_the_verb_finds_a_run_s_model_and_says_what_it_wrote(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "source")
    done = rljob("convert", str(source), str(tmp_path / "megatron"))
    assert done.code == Exit.OK, done.err
    assert "20 tensors, " in done.out
    back = rljob("convert", str(tmp_path / "megatron"), str(tmp_path / "hf"), "--model", str(source))
    assert back.code == Exit.OK, back.err
    assert_same_bits(weights(tmp_path / "hf"), weights(source))


WRONG: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "no source": (("sources", "out"), Exit.USAGE, "sources does not exist; nearest: "),
    "nothing in it": (("empty", "out"), Exit.BAD_INPUT, "looked for a checkpoint of a run (iter_*/ with rljob.json)"),
    "no model": (("run", "out"), Exit.BAD_INPUT, "set it with --model"),
    "another model": (("run", "out", "--model", "other"), Exit.BAD_INPUT, "training began with a model of fingerprint"),
    "a target that is there": (("source", "run"), Exit.BAD_INPUT, "is there already"),
    "a damaged checkpoint": (("damaged", "out", "--model", "source"), Exit.BAD_INPUT, "changed files ['common.pt']"),
}


@pytest.mark.parametrize(("given", "code", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_converted_is_reported(tmp_path: Path, given: tuple[str, ...], code: Exit, said: str) -> None:
    source, _ = tiny_llama(tmp_path / "source"), tiny_llama(tmp_path / "other", seed=1)
    for run, content in (("run", b"common"), ("damaged", b"other")):
        saved = tmp_path / run / "checkpoints" / "iter_0000001"
        saved.mkdir(parents=True)
        (saved / "common.pt").write_bytes(b"common")
        sealed_checkpoint(saved, source)
        (saved / "common.pt").write_bytes(content)
    (tmp_path / "empty").mkdir()
    ((ended, output),) = run_ranks(verb, 1, tmp_path, *given)
    assert (ended, said in output) == (code, True), output
    assert not (tmp_path / "out").exists()
