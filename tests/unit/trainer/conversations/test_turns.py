"""Turns of the environment are the chat template's own, whatever its habits are."""

import copy

import pytest

from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.turns import Turns

END, NEWLINE = "<|im_end|>", "\n"
GROUPED = (
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<result>' + m.content + '</result>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""the results of several calls share a turn of the user, as in Qwen's templates"""
ALTERNATES = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('only two roles') }}"
    "{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
)
REWRITES = "{% for m in messages %}{{ m.content | upper }}<|im_end|>{% endfor %}"
RESULTS = ({"role": "tool", "content": "1"}, {"role": "tool", "content": "2"})


def turns(tokenizer, template: str | None = None) -> Turns:
    changed = copy.copy(tokenizer)
    changed.chat_template = template or tokenizer.chat_template
    return Turns(changed, templated=True)


def text(tokenizer, template: str | None, messages, last: str) -> str:
    token = tokenizer.convert_tokens_to_ids(last)
    return tokenizer.decode(turns(tokenizer, template).after_answer(messages, token))


def test_results_that_share_a_turn_are_rendered_together(tokenizer):
    assert text(tokenizer, GROUPED, RESULTS, END) == (
        "\n<|im_start|>user\n<result>1</result>\n<result>2</result><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(("last", "begins"), [(END, "\n<|im_start|>"), ("a", "<|im_end|>\n<|im_start|>")])
def test_a_turn_ends_once(tokenizer, last, begins):
    assert text(tokenizer, None, RESULTS, last).startswith(begins)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (ALTERNATES, "the chat template refuses turns of tool, tool: only two roles"),
        (REWRITES, "the chat template does not quote the assistant's turn"),
    ],
)
def test_a_template_that_cannot_have_the_turns_is_reported(tokenizer, template, said):
    with pytest.raises(GenerateError, match=said):
        text(tokenizer, template, RESULTS, END)


def test_a_message_without_a_role_is_reported(tokenizer):
    with pytest.raises(GenerateError, match="refuses turns of None"):
        text(tokenizer, "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}", ({"content": "x"},), END)
