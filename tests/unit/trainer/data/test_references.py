"""Labels become the tokens that the assistant shall learn to say."""

from typing import Any

import pytest

from rljob_api.sections import Data, Source
from rljob_trainer.data.errors import DataError
from rljob_trainer.data.references import references
from rljob_trainer.data.render import Renderer, SftResponse
from rljob_trainer.data.rows import row
from rljob_trainer.data.tokenizer import load_tokenizer
from support.trainer.tiny_models import CHAT_TEMPLATE

THINKING = CHAT_TEMPLATE.replace(
    "message['content'] +", "('<think></think>' if message['role'] == 'assistant' else '') + message['content'] +"
)


QWEN3_CALLS = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls %}"
    "{{ '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""as Qwen3's writes calls and reasoning"""


@pytest.fixture
def tokenizer(tiny_llama_dir):
    return load_tokenizer(tiny_llama_dir)


def made(tokenizer, question: Any = "1 + 1", answer: Any = "2", longest: int = 100, **settings: Any) -> SftResponse:
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


ASKED = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}]
DIALOGUE = [
    *ASKED,
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 1 more?"},
    {"role": "assistant", "content": "3, of course"},
]


def conversed(tokenizer: Any, turns: list[dict[str, Any]], longest: int = 100, **settings: Any) -> SftResponse:
    data = Data(train=Source(jsonl="unread.jsonl"), input_key="messages", **settings)
    rows = [row({"messages": turns}, "q.jsonl:1", data, conversations=True)]
    (reference,) = references(rows, Renderer(data, tokenizer), longest)
    return reference


def test_of_a_whole_conversation_every_answer_is_learned_and_nothing_else(tokenizer):
    reference = conversed(tokenizer, DIALOGUE)
    assert [(segment.text, segment.by_model) for segment in reference.segments] == [
        ("2<|im_end|>", True),
        ("\n<|im_start|>user\nAnd 1 more?<|im_end|>\n<|im_start|>assistant\n", False),
        ("3, of course<|im_end|>", True),
    ]
    assert [segment.text for segment in reference.segments if segment.by_model] == [
        made(tokenizer, DIALOGUE[:2], "2").text,
        made(tokenizer, DIALOGUE[:4], "3, of course").text,
    ]
    assert sum(segment.length for segment in reference.segments) == len(reference.tokens_T)
    asked = tokenizer.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    whole = asked + reference.text + "\n"
    assert whole == tokenizer.apply_chat_template(DIALOGUE, tokenize=False)
    assert tokenizer.decode(reference.tokens_T) == reference.text


def test_what_a_template_writes_into_the_last_answer_alone_is_learned_there_alone(tokenizer):
    """As Qwen3's does: an empty thought in the last answer, none in earlier ones."""
    tokenizer.chat_template = CHAT_TEMPLATE.replace(
        "message['content'] +",
        "('<think></think>' if message['role'] == 'assistant' and loop.last else '') + message['content'] +",
    )
    first, _, last = conversed(tokenizer, DIALOGUE).segments
    assert (first.text, last.text) == ("2<|im_end|>", "<think></think>3, of course<|im_end|>")


def test_an_answer_that_occurs_again_later_ends_where_it_ends(tokenizer):
    turns = [*DIALOGUE[:4], {"role": "assistant", "content": "2"}]
    assert [segment.text for segment in conversed(tokenizer, turns).segments][::2] == ["2<|im_end|>"] * 2


def test_one_answer_of_a_conversation_is_that_of_a_label(tokenizer):
    assert conversed(tokenizer, DIALOGUE[:3]).tokens_T == made(tokenizer, ASKED, "2").tokens_T


def test_the_end_of_the_last_answer_may_be_the_tokenizer_s_but_not_that_of_an_earlier_one(tokenizer):
    tokenizer.chat_template = CHAT_TEMPLATE.replace("<|im_end|>", "")
    assert conversed(tokenizer, DIALOGUE[:3]).text == "2<|im_end|>"
    with pytest.raises(DataError, match=r"q.jsonl:1: the chat template does not write message 2 as the assistant"):
        conversed(tokenizer, DIALOGUE)


@pytest.mark.parametrize("again", ["3", "<think>1 + 1</think>2"])
def test_a_template_that_drops_what_was_said_earlier_is_refused(tokenizer, again):
    tokenizer.chat_template = CHAT_TEMPLATE.replace(
        "message['content'] +",
        "(message['content'] if loop.last else message['content'].split('</think>')[-1]) +",
    )
    turns = [*ASKED, {"role": "assistant", "content": "<think>1 + 1</think>2"}, ASKED[1]]
    with pytest.raises(DataError, match=r"message 2 as the assistant .* give each answer a separate row"):
        conversed(tokenizer, [*turns, {"role": "assistant", "content": again}])


def test_a_prefill_is_refused_for_a_whole_conversation(tokenizer):
    with pytest.raises(DataError, match=r"q.jsonl:1: data.assistantPrefill begins one answer"):
        conversed(tokenizer, DIALOGUE, assistant_prefill="Well,")


def test_of_a_whole_conversation_all_that_follows_the_question_counts_as_long(tokenizer):
    tokens = len(conversed(tokenizer, DIALOGUE).tokens_T)
    with pytest.raises(DataError, match=rf"maxNewTokens {tokens - 1}: q.jsonl:1 \({tokens} tokens\)"):
        conversed(tokenizer, DIALOGUE, longest=tokens - 1)


def calling(arguments: Any = '{"a": 1}', **more: Any) -> list[dict[str, Any]]:
    """Return a conversation whose first answer calls a tool, in the form of OpenAI's service."""
    call = {"id": "call-1", "type": "function", "function": {"name": "add_one", "arguments": arguments}}
    return [
        ASKED[1],
        {"role": "assistant", "content": None, "tool_calls": [call], **more},
        {"role": "tool", "content": "2", "tool_call_id": "call-1"},
        {"role": "assistant", "content": "It is 2."},
    ]


def test_an_answer_that_calls_a_tool_is_learned_with_its_call(tokenizer):
    tokenizer.chat_template = QWEN3_CALLS
    segments = conversed(tokenizer, calling()).segments
    assert [(segment.text, segment.by_model) for segment in segments] == [
        ('\n<tool_call>\n{"name": "add_one", "arguments": {"a": 1}}\n</tool_call><|im_end|>', True),
        ("\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n", False),
        ("It is 2.<|im_end|>", True),
    ]


def test_arguments_may_be_an_object_and_a_call_may_stand_without_function(tokenizer):
    tokenizer.chat_template = QWEN3_CALLS
    expected = conversed(tokenizer, calling())
    assert conversed(tokenizer, calling({"a": 1})) == expected
    assert conversed(tokenizer, calling(tool_calls=[{"name": "add_one", "arguments": {"a": 1}}])) == expected


def test_a_prompt_shows_earlier_calls(tokenizer):
    tokenizer.chat_template = QWEN3_CALLS
    data = Data(train=Source(jsonl="unread.jsonl"))
    asked = row({"question": [*calling(), ASKED[1]], "answer": "2"}, "q.jsonl:1", data)
    assert '<tool_call>\n{"name": "add_one"' in Renderer(data, tokenizer).prompt("0", asked).text


def test_reasoning_is_learned_where_the_template_writes_it_and_refused_where_it_does_not(tokenizer):
    turns = [*ASKED, {"role": "assistant", "content": "2", "reasoning_content": "1 and 1"}]
    tokenizer.chat_template = QWEN3_CALLS
    assert conversed(tokenizer, turns).text == "<think>\n1 and 1\n</think>\n\n2<|im_end|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    with pytest.raises(DataError, match=r"q.jsonl:1: the chat template does not write message 2 as the assistant"):
        conversed(tokenizer, turns)


def test_calls_that_a_template_leaves_out_are_refused(tokenizer):
    with pytest.raises(DataError, match=r"q.jsonl:1: the chat template leaves tool_calls out; put the calls into"):
        conversed(tokenizer, calling())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tool_calls": 7}, "message 1 of `messages` has `tool_calls` of type int, not a list"),
        ({"tool_calls": [], "content": None}, "message 1 of `messages` wants a `role` and a `content`"),
        ({"tool_calls": [{"function": "add"}]}, "message 1 .* a call in `tool_calls` wants a function with a `name`"),
        ({"tool_calls": [{"name": "add", "arguments": "[" * 100_000}]}, "an object or the JSON of one"),
        ({"tool_calls": [{"name": "add", "arguments": "{"}]}, "an object or the JSON of one; is {'name': 'add'"),
        ({"tool_calls": [{"name": "add", "arguments": "[1]"}]}, "an object or the JSON of one"),
        ({"reasoning_content": ["x"]}, "the chat template refuses turns of user, assistant, tool"),
        ({"weight": 0}, "message 1 of `messages` has the weight 0, and all answers of a conversation are learned"),
    ],
)
def test_what_cannot_be_said_as_it_stands_is_refused(tokenizer, more, said):
    tokenizer.chat_template = QWEN3_CALLS
    with pytest.raises(DataError, match=rf"q.jsonl:1: .*{said}"):
        conversed(tokenizer, calling(**({"content": "Well"} | more)))
