"""The real model of the quickstart: converted without loss, with a tokenizer that reads numbers digit by digit."""

import hashlib
import json

import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from rljob_trainer.data.packages import checked
from rljob_trainer.data.smollm2 import END_OF_TURN
from rljob_trainer.data.tokenizer import load_tokenizer

WEIGHTS = "785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154"
"""SHA-256 over names and bytes of the 272 tensors that transformers 5.12.1 reads from the same file"""


def test_the_weights_are_those_that_transformers_reads(smollm2_dir):
    weights = load_file(smollm2_dir / "model.safetensors")
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].tobytes())
    assert len(weights) == 272
    assert digest.hexdigest() == WEIGHTS


def test_it_is_a_complete_checkpoint_that_ends_turns(smollm2_dir):
    config = json.loads((checked(smollm2_dir) / "generation_config.json").read_text())
    tokenizer = load_tokenizer(smollm2_dir)
    assert tokenizer.eos_token == tokenizer.pad_token == END_OF_TURN
    assert config["eos_token_id"] == tokenizer.eos_token_id
    assert tokenizer.bos_token is None


def test_numbers_are_read_digit_by_digit(smollm2_dir):
    assert load_tokenizer(smollm2_dir).tokenize("407 + 1") == ["4", "0", "7", "Ġ+", "Ġ", "1"]


def test_it_knows_that_seven_and_five_are_twelve(smollm2_dir):
    tokenizer = load_tokenizer(smollm2_dir)
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir)
    prompt = "<|im_start|>user\n7 + 5 =<|im_end|>\n<|im_start|>assistant\n7 + 5 ="
    tokens = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        output = model.generate(**tokens, max_new_tokens=3, do_sample=False)
    assert tokenizer.decode(output[0, tokens["input_ids"].shape[1] :]).split() == ["12"]
