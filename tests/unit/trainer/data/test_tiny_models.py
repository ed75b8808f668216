"""The checkpoints that other tests start from are the same each time, and differ where they should."""

import hashlib
import json
from pathlib import Path

import pytest
from safetensors import safe_open

from rljob_trainer.data.packages import checked
from rljob_trainer.data.tokenizer import load_tokenizer
from support.trainer.tiny_models import tiny_llama, tiny_qwen3


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen3])
def test_the_same_call_writes_the_same_bytes(tmp_path, make):
    assert digests(make(tmp_path / "a")) == digests(make(tmp_path / "b"))


@pytest.mark.parametrize("make", [tiny_llama, tiny_qwen3])
def test_they_are_complete_checkpoints(tmp_path, make):
    assert checked(make(tmp_path)) == tmp_path


def test_another_seed_makes_other_weights_and_the_same_tokenizer(tmp_path):
    one, other = digests(tiny_llama(tmp_path / "a")), digests(tiny_llama(tmp_path / "b", seed=1))
    assert {name for name in one if one[name] != other[name]} == {"model.safetensors"}


@pytest.mark.parametrize(("tied", "head"), [(True, set()), (False, {"lm_head.weight"})])
def test_untied_models_have_a_head(tmp_path, tied, head):
    with safe_open(tiny_qwen3(tmp_path, tied=tied) / "model.safetensors", "np") as file:
        assert set(file.keys()) & {"lm_head.weight"} == head


def test_bfloat16_weights_say_so(tmp_path):
    with safe_open(tiny_llama(tmp_path, dtype="bfloat16") / "model.safetensors", "np") as file:
        assert file.get_slice("model.norm.weight").get_dtype() == "BF16"
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_each_digit_is_a_token_and_special_tokens_are_whole(tiny_llama_dir):
    tokenizer = load_tokenizer(tiny_llama_dir)
    assert tokenizer.tokenize("407<|im_end|>") == ["4", "0", "7", "<|im_end|>"]
    assert (tokenizer.eos_token, tokenizer.pad_token, len(tokenizer)) == ("<|im_end|>", "<|endoftext|>", 512)


@pytest.mark.parametrize("text", ["47 + 36 =", "  two  spaces\n\ttab", "día 你好 😀", "State the final answer."])
def test_any_text_survives_the_tokenizer(tiny_llama_dir, text):
    tokenizer = load_tokenizer(tiny_llama_dir)
    assert tokenizer.decode(tokenizer.encode(text)) == text
