"""Rows become the text and tokens that an engine continues."""

from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from rljob_api.sections import Data, Source
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.rows import row
from rljob_trainer.data.tokenizer import load_tokenizer
from support.trainer.tiny_models import CHAT_TEMPLATE

DEFAULT_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
SOURCE = Source(jsonl="unread.jsonl")


@pytest.fixture
def tokenizer(tiny_llama_dir):
    return load_tokenizer(tiny_llama_dir)


def prompt(tokenizer, question: Any = "1 + 1", **settings: Any):
    data = Data(train=SOURCE, **settings)
    return Renderer(data, tokenizer).prompt("7", row({"question": question, "answer": "2"}, "q.jsonl:1", data))


def test_a_question_becomes_a_user_turn_and_an_opened_assistant_turn(tokenizer):
    made = prompt(tokenizer)
    assert made.text == "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n"
    assert (made.uid, made.question, made.label) == ("7", "1 + 1", "2")


def test_tokens_are_those_of_the_text_with_each_marker_as_one(tokenizer):
    made = prompt(tokenizer)
    assert tokenizer.decode(made.tokens_T) == made.text
    assert made.tokens_T.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2


def test_the_prefill_begins_the_assistants_turn(tokenizer):
    made = prompt(tokenizer, prompt_template="{question} =", assistant_prefill="{question} =")
    assert made.text == "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n1 + 1 ="


def test_braces_in_questions_and_templates_are_left_alone(tokenizer):
    made = prompt(tokenizer, question="{x} in {question}?", prompt_template="Solve {question} as {answer: n}")
    assert "Solve {x} in {question}? as {answer: n}<|im_end|>" in made.text


def test_a_system_prompt_comes_first(tokenizer):
    assert prompt(tokenizer, system_prompt="Be brief.").text.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1"
    )


def test_no_system_prompt_means_none_also_where_the_template_adds_one(tokenizer):
    tokenizer.chat_template = DEFAULT_SYSTEM + CHAT_TEMPLATE
    assert prompt(tokenizer).text == "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n"


def test_a_system_turn_quoted_in_a_question_is_kept(tokenizer):
    tokenizer.chat_template = DEFAULT_SYSTEM + CHAT_TEMPLATE
    quoted = "<|im_start|>system\nBe kind.<|im_end|>\n"
    assert prompt(tokenizer, question=f"Explain {quoted}").text.count(quoted) == 1


def test_chat_messages_are_rendered_as_they_are(tokenizer):
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "1 + 1")]
    made = prompt(
        tokenizer,
        question=[{"role": role, "content": content} for role, content in turns],
        prompt_template="Q: {question}",
        assistant_prefill="{question} =",
    )
    assert made.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n1 + 1 ="
    )
    assert made.question == "1 + 1"


def test_two_system_turns_are_refused(tokenizer):
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(DataError, match=r"q\.jsonl:1: .*data\.systemPrompt is set as well"):
        prompt(tokenizer, question=messages, system_prompt="Be brief.")


def test_without_a_chat_template_the_user_turn_is_the_prompt(tokenizer):
    made = prompt(tokenizer, prompt_template="Q: {question}\nA:", chat_template=False)
    assert made.text == "Q: 1 + 1\nA:"
    assert tokenizer.decode(made.tokens_T) == "Q: 1 + 1\nA:"


@pytest.mark.parametrize(("chat_template", "added"), [(True, 0), (False, 1)])
def test_begin_of_text_is_added_only_where_no_template_writes_it(tokenizer, chat_template, added):
    begin = ("<|endoftext|>", tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[begin])
    assert prompt(tokenizer, chat_template=chat_template).tokens_T.count(begin[1]) == added


def test_chat_messages_need_the_chat_template(tokenizer):
    with pytest.raises(DataError, match=r"q\.jsonl:1: chat messages need data\.chatTemplate"):
        prompt(tokenizer, question=[{"role": "user", "content": "b"}], chat_template=False)


def test_a_tokenizer_without_a_chat_template_is_refused_where_one_is_wanted(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(DataError, match=r"has no chat template; set data\.chatTemplate to false"):
        prompt(tokenizer)


def test_a_template_without_generation_prompt_is_refused(tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE.partition("{% if add_generation_prompt")[0]
    with pytest.raises(DataError, match=r"ignores add_generation_prompt"):
        prompt(tokenizer)


def test_a_template_that_refuses_a_row_is_reported_with_its_place(tokenizer):
    tokenizer.chat_template = (
        "{% if messages[0]['content'] == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}" + CHAT_TEMPLATE
    )
    with pytest.raises(DataError, match=r"q\.jsonl:1: the chat template refuses turns of user: no bad words"):
        prompt(tokenizer, question="bad")


HERMES = (
    "{% if tools %}<|im_start|>system\nTools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|im_end|>\n"
    "{% elif messages[0]['role'] != 'system' %}<|im_start|>system\nBe nice.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "calculator", "description": "Calculate.", "parameters": {}}}


def with_tools(tokenizer, **settings: Any):
    data = Data(train=SOURCE, **settings)
    return Renderer(data, tokenizer, [TOOL]).prompt("7", row({"question": "1 + 1", "answer": "2"}, "q.jsonl:1", data))


def test_the_template_shows_the_model_of_its_tools(tokenizer):
    tokenizer.chat_template = HERMES
    text = with_tools(tokenizer).text
    assert text.startswith("<|im_start|>system\nTools: {")
    assert '"name": "calculator"' in text
    assert "system" not in prompt(tokenizer).text


def test_tools_that_no_prompt_shows_are_refused_unless_the_system_turn_does(tokenizer):
    with pytest.raises(DataError, match=r"does not show rollout\.tools to the model: no prompt contains calculator"):
        with_tools(tokenizer)
    assert "may call calculator" in with_tools(tokenizer, system_prompt="You may call calculator.").text


def test_a_template_without_turns_for_results_is_refused(tokenizer):
    tokenizer.chat_template = HERMES.replace("in messages %}", "in messages if message['role'] != 'tool' %}")
    with pytest.raises(DataError, match="shows no turns of the role tool"):
        with_tools(tokenizer)


BOMBS = {
    "memory": "{{ 'x' * (messages | length * 10**10) }}",
    "time": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_template_that_explodes_for_one_row_fails_that_row_and_no_other(tokenizer, bomb):
    condition = "{% if messages[-1].content == 'bomb' %}" + BOMBS[bomb] + "{% endif %}"
    tokenizer.chat_template = condition + tokenizer.chat_template
    with pytest.raises(DataError, match=r"q\.jsonl:1: the chat template cannot be used for these turns: it takes"):
        prompt(tokenizer, "bomb")
    assert prompt(tokenizer).text.startswith("<|im_start|>user\n1 + 1")
