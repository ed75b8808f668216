"""SGLang's parsers behind the gateway, as OpenAI's own client sees them."""

import json

import pytest

from rljob_trainer.gateway.parsing import Parsed, Parsers, UnknownParserError
from support.trainer.scripted_model import Says

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
    },
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"words": "a b"}}\n</tool_call>'
ASKED = {"role": "user", "content": "Where is it?"}
FOUND = {"role": "tool", "content": "here"}


def test_a_call_is_read_and_its_tokens_stay_as_they_were_sampled(serve):
    served = serve([Says(f"Let me see.\n{CALL}"), Says("It is here.")], parsers=Parsers(tools="qwen25"))
    answer = served.ask([ASKED], tools=[SEARCH])
    message, (call,) = answer.choices[0].message, answer.choices[0].message.tool_calls
    assert (answer.choices[0].finish_reason, message.content.strip()) == ("tool_calls", "Let me see.")
    assert (call.function.name, json.loads(call.function.arguments)) == ("search", {"words": "a b"})
    served.ask([ASKED, message, {**FOUND, "tool_call_id": call.id}], tools=[SEARCH])
    one, two = served.turns
    assert one.said == f"Let me see.\n{CALL}<|im_end|>"
    assert two.parent == 0
    assert "here" in two.given
    assert "search" not in two.given


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_has_the_names_of_its_calls_and_the_time_of_its_request(serve, stream):
    now = [0.0]

    def slow(before):
        now[0] += 2.5
        return Says(f"{CALL}\n{CALL}")

    served = serve(slow, parsers=Parsers(tools="qwen25"), clock=lambda: now[0])
    served.gateway._unix_time = lambda: 1.7e9
    with served.client() as client:
        asked = client.chat.completions.create(model="any", messages=[ASKED], tools=[SEARCH], stream=stream)
        list(asked)
    (turn,) = served.turns
    assert (turn.calls, turn.began, turn.seconds) == (("search", "search"), 1.7e9, 2.5)


def test_a_stream_has_calls_too(serve):
    served = serve([Says(CALL)], parsers=Parsers(tools="qwen25"))
    with served.client() as client:
        chunks = list(client.chat.completions.create(model="any", messages=[ASKED], tools=[SEARCH], stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls] == [(0, "search"), (0, None)]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_reasoning_is_apart_from_the_answer_and_need_not_come_back(serve):
    served = serve([Says("<think>Hm.</think>It is here."), Says("Yes.")], parsers=Parsers(reasoning="qwen3"))
    message = served.ask([ASKED]).choices[0].message
    assert (message.reasoning_content.strip(), message.content.strip()) == ("Hm.", "It is here.")
    history = [ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": "Sure?"}]
    served.ask(history)
    assert served.turns[1].parent == 0
    assert "Hm." in served.turns[0].said


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("qwen25", CALL),
        ("hermes", CALL),
        ("llama3", '<|python_tag|>{"name": "search", "parameters": {"words": "a b"}}'),
        ("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"words": "a b"}}]'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=search>\n<parameter=words>\na b\n</parameter>\n</function>\n</tool_call>",
        ),
        ("pythonic", '[search(words="a b")]'),
        ("glm45", "<tool_call>search\n<arg_key>words</arg_key>\n<arg_value>a b</arg_value>\n</tool_call>"),
    ],
    ids=lambda each: each if each.isidentifier() else "",
)
def test_each_family_writes_calls_in_its_own_way(parser, text):
    parsed = Parsers(tools=parser).parsed(text, [SEARCH])
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == [("search", {"words": "a b"})]


@pytest.mark.parametrize("text", ["<tool_call>\n{broken", "no call", '<tool_call>{"name": 3}</tool_call>'])
def test_what_is_no_call_is_text(text):
    assert Parsers(tools="qwen25").parsed(text, [SEARCH]) == Parsed(text)


def test_without_tools_in_the_request_nothing_is_a_call():
    assert Parsers(tools="qwen25").parsed(CALL, []) == Parsed(CALL)
    assert Parsers().parsed(CALL, [SEARCH]).calls == ()


def test_a_parser_that_sglang_does_not_have_is_refused_with_those_that_it_has():
    with pytest.raises(UnknownParserError, match=r"toolParser 'qwen26' is not a parser of SGLang: .*qwen25"):
        Parsers(tools="qwen26").check()
    with pytest.raises(UnknownParserError, match=r"reasoningParser 'qwen' is not a parser of SGLang: .*qwen3"):
        Parsers(reasoning="qwen").check()
    Parsers("qwen25", "qwen3").check()
