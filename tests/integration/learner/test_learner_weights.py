"""Weights go from Hugging Face to Megatron and back without a bit changed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.trainer.learner_data import learner_config, sequences
from support.trainer.learner_ranks import run_ranks
from support.trainer.learner_scenarios import train_and_export, write_hf, zeros
from support.trainer.naive_learner import NaiveLearner
from support.trainer.tiny_models import tiny, tiny_llama, tiny_qwen3


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first
    )


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2)])
def test_tensors_of_zeros_are_known_by_name(tmp_path: Path, tensor: int, pipeline: int) -> None:
    file = tiny_llama(tmp_path) / "model.safetensors"
    weights, empty = load_file(file), ["model.layers.1.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"]
    save_file(weights | {name: torch.zeros_like(weights[name]) for name in empty}, file, {"format": "pt"})
    config = learner_config(tmp_path, tensor=tensor, pipeline=pipeline)
    assert all(set(found) == set(empty) for found in run_ranks(zeros, tensor * pipeline, config))


def test_a_vocabulary_that_ranks_cannot_share_evenly_comes_back_too(tmp_path: Path) -> None:
    directory = tiny_llama(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(directory)
    model.resize_token_embeddings(509)
    model.save_pretrained(directory)
    config = learner_config(directory, tensor=2)
    (_, exported), _ = run_ranks(train_and_export, 2, config, [])
    assert same(exported, load_file(directory / "model.safetensors"))


def test_bf16_weights_come_back_bit_by_bit(tmp_path: Path) -> None:
    directory = tiny_qwen3(tmp_path, dtype="bfloat16")
    ((_, exported),) = run_ranks(train_and_export, 1, learner_config(directory, precision="bf16"), [])
    assert same(exported, load_file(directory / "model.safetensors"))


def test_a_written_checkpoint_is_a_hugging_face_model_with_its_tokenizer(tmp_path: Path) -> None:
    directory = tiny_qwen3(tmp_path / "original", tied=False)
    run_ranks(write_hf, 2, learner_config(directory, tensor=2), tmp_path / "written")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "written").state_dict()
    assert same(written, AutoModelForCausalLM.from_pretrained(directory).state_dict())
    assert AutoTokenizer.from_pretrained(tmp_path / "written")("1 + 1")["input_ids"]


@pytest.mark.parametrize("architecture", ["Glm4MoeForCausalLM", "DeepseekV3ForCausalLM"])
def test_a_written_checkpoint_has_the_layers_that_no_learner_trains(tmp_path: Path, architecture: str) -> None:
    named = {"tied": False, "dtype": "bfloat16", "num_nextn_predict_layers": 1}
    directory = tiny(architecture, tmp_path / "original", **named)
    run_ranks(write_hf, 2, learner_config(directory, pipeline=2, precision="bf16"), tmp_path / "written")
    original, written = (load_file(path / "model.safetensors") for path in (directory, tmp_path / "written"))
    assert same(written, original)
    assert "model.layers.2.eh_proj.weight" in written


def test_trained_weights_are_those_of_torch_on_the_hugging_face_model(tmp_path: Path) -> None:
    directory, steps = tiny_llama(tmp_path), [sequences(6, seed) for seed in range(2)]
    config = learner_config(directory)
    ((_, ours),) = run_ranks(train_and_export, 1, config, steps)
    naive = NaiveLearner(directory, config.loss, config.optimizer, [5e-4, 1e-3])
    for step in steps:
        naive.step(step, off_policy=False)
    theirs = dict(naive.model.named_parameters())
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
