"""Without a learner, engines are verified against the files of the checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rljob_api.sections import Quantization
from rljob_api.sizing.model_shape import shape
from rljob_api.sizing.quantised import of_model
from rljob_trainer.sync.layout import Sharding
from rljob_trainer.sync.rank.digest import cpu_digest
from rljob_trainer.sync.rank.files import CheckpointFiles
from rljob_trainer.sync.rank.quantised.encoding import encoding
from rljob_trainer.sync.rank.sender import WeightSender, specs_of
from support.trainer.tiny_models import tiny, tiny_llama

SHARDING = Sharding(ranks=1, key_value_heads=2, tied_embeddings=True)
INDEX = "model.safetensors.index.json"


def files(directory: Path, precision: str = "fp32") -> CheckpointFiles:
    """Return the files in a directory, which get a Llama's `config.json` if they have none."""
    if not (directory / "config.json").exists():
        tiny_llama(directory / "llama")
        (directory / "llama" / "config.json").rename(directory / "config.json")
    return CheckpointFiles(directory, precision, "cpu", torch.get_num_threads(), SHARDING, 0, 1, "", 0)


def wanted(tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32):
    """Return the digests of engines that hold these tensors, as a learner reports them."""
    held = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return WeightSender(specs_of(held.items()), SHARDING, cpu_digest).digests(held.items())


@pytest.fixture
def tensors(tiny_llama_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(tiny_llama_dir / "model.safetensors")


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_digests_are_those_of_a_learner_with_these_weights(tiny_llama_dir: Path, tensors, precision, dtype):
    assert files(tiny_llama_dir, precision).written() == wanted(tensors, dtype)


def test_files_are_those_of_the_index_and_only_what_engines_keep_counts(tmp_path: Path, tensors):
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for file, held in halves.items():
        computed = (
            {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)} if file == "model-1.safetensors" else {}
        )
        save_file({name: tensors[name] for name in held} | computed, tmp_path / file)
    save_file({"model.norm.weight": torch.zeros(64)}, tmp_path / "another.safetensors")
    weight_map = {name: file for file, held in halves.items() for name in held}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    assert files(tmp_path).written() == wanted({name: tensors[name] for name in names})


def test_a_changed_weight_changes_the_digest(tmp_path: Path, tensors):
    name = "model.layers.1.mlp.down_proj.weight"
    save_file(tensors | {name: tensors[name] + 1e-3}, tmp_path / "model.safetensors")
    (changed,), (right,) = files(tmp_path).written(), wanted(tensors)
    assert {tensor for tensor in right if changed[tensor] != right[tensor]} == {name}


def test_a_router_s_bias_is_fp32_and_layers_that_engines_do_not_load_do_not_count(tmp_path: Path):
    model = tiny("Glm4MoeForCausalLM", tmp_path, tied=False, dtype="bfloat16", num_nextn_predict_layers=1)
    held = load_file(model / "model.safetensors")
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    loaded = {name: tensor for name, tensor in held.items() if not name.startswith("model.layers.2.")}
    untied = Sharding(ranks=1, key_value_heads=2, tied_embeddings=False)

    made = CheckpointFiles(model, "bf16", "cpu", torch.get_num_threads(), untied, 0, 1, "", 0)
    (digests,) = made.written()
    assert (held[bias].dtype, len(held) > len(loaded)) == (torch.float32, True)
    assert (digests,) == WeightSender(specs_of(loaded.items()), untied, cpu_digest).digests(loaded.items())


def test_engines_in_fp8_read_files_of_their_own_and_are_verified_against_them(tmp_path: Path):
    model = tiny("Qwen3MoeForCausalLM", tmp_path / "model", dtype="bfloat16")
    how = of_model(Quantization.FP8, shape(json.loads((model / "config.json").read_text())))
    weights = CheckpointFiles(model, "bf16", "cpu", torch.get_num_threads(), SHARDING, 0, 1, "", 0, how)
    weights.write(tmp_path / "quantised")
    read = load_file(tmp_path / "quantised" / "model.safetensors")
    published = dict(encoding(how).tensors(load_file(model / "model.safetensors").items()))
    assert read.keys() == published.keys() == {each.name for each in weights.weight_specs()}
    assert all(torch.equal(read[name].float(), tensor.float()) for name, tensor in published.items())
    assert read["model.layers.0.mlp.experts.0.up_proj.weight"].dtype == torch.float8_e4m3fn
    assert read["model.layers.0.mlp.gate.weight"].dtype == torch.bfloat16
    assert weights.written() == WeightSender(specs_of(published.items()), SHARDING, cpu_digest).digests(
        published.items()
    )


def test_without_a_format_of_their_own_nothing_is_written(tiny_llama_dir: Path, tmp_path: Path):
    files(tiny_llama_dir).write(tmp_path / "none")
    assert not (tmp_path / "none").exists()
