"""Labels become the tokens that the assistant shall learn to say."""

from typing import Any

import pytest

from rljob_api.sections import Data, Source
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.references import Reference, references
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import row
from rljob_trainer.data.tokenizer import load_tokenizer
from tiny_models import CHAT_TEMPLATE

THINKING = CHAT_TEMPLATE.replace(
    "message['content'] +", "('<think></think>' if message['role'] == 'assistant' else '') + message['content'] +"
)


@pytest.fixture
def tokenizer(tiny_llama_dir):
    return load_tokenizer(tiny_llama_dir)


def made(tokenizer, question: Any = "1 + 1", answer: Any = "2", longest: int = 100, **settings: Any) -> Reference:
    data = Data(train=Source(jsonl="unread.jsonl"), **settings)
    rows = [row({"question": question, "answer": answer}, "q.jsonl:1", data)]
    (reference,) = references(rows, Renderer(data, tokenizer), longest)
    return reference


def test_a_label_is_said_by_the_assistant_up_to_the_end_of_its_turn(tokenizer):
    reference = made(tokenizer, answer="two\nor 2")
    assert reference.text == "two\nor 2<|im_end|>"
    assert tokenizer.decode(reference.tokens_T) == reference.text
    assert reference.tokens_T[-1] == tokenizer.eos_token_id


def test_prompt_and_response_are_the_conversation_that_the_template_writes(tokenizer):
    turns = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
    data = Data(train=Source(jsonl="unread.jsonl"))
    asked = Renderer(data, tokenizer).prompt("0", row({"question": "1 + 1", "answer": "2"}, "q.jsonl:1", data))
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    assert asked.text + made(tokenizer).text + "\n" == whole
    assert [*asked.tokens_T, *made(tokenizer).tokens_T] == tokenizer.encode(whole.rstrip(), add_special_tokens=False)


def test_a_response_goes_on_after_the_prefill(tokenizer):
    reference = made(tokenizer, answer=" 2", assistant_prefill="{question} =")
    assert reference.text == " 2<|im_end|>"


def test_what_the_template_writes_into_every_answer_is_learned_too(tokenizer):
    tokenizer.chat_template = THINKING
    assert made(tokenizer).text == "<think></think>2<|im_end|>"


def test_a_number_and_a_conversation_have_responses_too(tokenizer):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert made(tokenizer, [*turns, {"role": "user", "content": "1 + 1"}], 2).text == "2<|im_end|>"


def test_without_a_template_the_tokenizer_ends_the_response(tokenizer):
    reference = made(tokenizer, chat_template=False)
    assert (reference.text, reference.tokens_T[-1]) == ("2<|im_end|>", tokenizer.eos_token_id)


def test_a_template_that_marks_no_end_is_given_the_tokenizer_s(tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE.replace("<|im_end|>", "")
    assert made(tokenizer, answer="2 ").text == "2<|im_end|>"


def test_a_response_that_cannot_end_is_refused(tokenizer):
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="says how a response ends"):
        made(tokenizer, chat_template=False)


@pytest.mark.parametrize("empty", ["", " \n"])
def test_nothing_is_no_response(tokenizer, empty):
    with pytest.raises(DataError, match=r"q.jsonl:1: there is no response to learn \(data.labelKey is empty there\)"):
        made(tokenizer, answer=empty)


def test_a_template_that_opens_a_turn_otherwise_than_it_writes_it_is_refused(tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE.replace("assistant\n' }}{% endif", "assistant\nSure: ' }}{% endif")
    with pytest.raises(DataError, match=r"q.jsonl:1: the chat template does not write an answer where it has opened"):
        made(tokenizer)


def test_responses_that_are_too_long_are_named(tokenizer):
    assert len(made(tokenizer, answer="12", longest=3).tokens_T) == 3
    with pytest.raises(DataError, match=r"1 of 1 responses are longer than .*maxNewTokens 3: q.jsonl:1 \(4 tokens\)"):
        made(tokenizer, answer="123", longest=3)
