"""Chat templates of different families: what they put before the first turn, and how they open the assistant's.

Each template is a shortened form of the family's own that keeps the habit in question.
"""

from collections.abc import Sequence

import pytest
from jinja2 import Environment

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.messages import Message
from rljob_trainer.data.template import Render, default_system_turn, opens_assistant_turn

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = TURNS + OPENING
SMOLLM2 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n"
    "{% endif %}" + CHATML
)
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n"
    "{% endfor %}" + OPENING
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} </s>"
    "{% endif %}{% endfor %}"
)
LLAMA3 = (
    "<|begin|><|head|>system<|end|>\n\nCutting Knowledge Date: December 2023\n\n<|eot|>"
    "{% for m in messages %}<|head|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|head|>assistant<|end|>\n\n{% endif %}"
)
LAST_TURN_ONLY = "{{ messages[-1].content }}"
COUNTED = "{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def renderer(template: str) -> Render:
    compiled = Environment().from_string(template)

    def render(messages: Sequence[Message], open_assistant_turn: bool) -> str:
        return compiled.render(messages=messages, add_generation_prompt=open_assistant_turn)

    return render


@pytest.mark.parametrize("template", [CHATML, QWEN3, LLAMA2])
def test_a_template_without_a_system_turn_of_its_own_adds_nothing(template):
    assert default_system_turn(renderer(template), "") == ""


def test_a_system_turn_that_nobody_asked_for_is_found():
    found = default_system_turn(renderer(SMOLLM2), "")
    assert found == "<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n"


def test_the_begin_of_text_token_is_not_part_of_the_system_turn():
    found = default_system_turn(renderer(LLAMA3), "<|begin|>")
    assert found == "<|head|>system<|end|>\n\nCutting Knowledge Date: December 2023\n\n<|eot|>"


def test_a_template_whose_first_turn_looks_different_cannot_be_judged():
    with pytest.raises(DataError, match=r"set data\.systemPrompt"):
        default_system_turn(renderer(COUNTED), "")


def test_a_template_that_leaves_turns_out_is_refused():
    with pytest.raises(DataError, match=r"does not write all turns"):
        default_system_turn(renderer(LAST_TURN_ONLY), "")


@pytest.mark.parametrize("template", [CHATML, SMOLLM2, QWEN3, LLAMA3])
def test_a_generation_prompt_is_seen(template):
    assert opens_assistant_turn(renderer(template))


def test_a_template_that_marks_only_user_turns_needs_no_generation_prompt():
    assert opens_assistant_turn(renderer(LLAMA2))


def test_a_missing_generation_prompt_is_noticed():
    assert not opens_assistant_turn(renderer(TURNS))
