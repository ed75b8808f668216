"""Anthropic's own client at the gateway."""

import anthropic
import pytest

from rljob_trainer.gateway.parsing import Parsers
from support.trainer.scripted_model import Says

SEARCH = {"name": "search", "description": "Search.", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"words": "a b"}}\n</tool_call>'
ASKED = {"role": "user", "content": "Where is it?"}


@pytest.fixture
def client():
    clients = []

    def opened(served):
        url = served.base_url.removesuffix("/v1")
        clients.append(anthropic.Anthropic(base_url=url, api_key=served.session.key, max_retries=0))
        return clients[-1].messages

    yield opened
    for each in clients:
        each.close()


def test_a_history_with_tools_continues_as_it_was_sampled(serve, client):
    served = serve([Says(f"See.\n{CALL}"), Says("It is here.")], parsers=Parsers(tools="qwen25"))
    ask = {"model": "any", "max_tokens": 200, "tools": [SEARCH], "system": "Be brief."}
    first = client(served).create(messages=[ASKED], **ask)
    text, use = first.content
    assert (first.stop_reason, text.text.strip(), use.name, use.input) == (
        "tool_use",
        "See.",
        "search",
        {"words": "a b"},
    )
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "here"}]}
    history = [ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client(served).create(messages=history, **ask)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "It is here.")
    one, two = served.turns
    assert one.given.startswith("<|im_start|>system\nBe brief.")
    assert (two.parent, "here" in two.given, "See." in two.given) == (0, True, False)


def test_a_stream_has_the_same_answer(serve, client):
    served = serve([Says(f"See.\n{CALL}")], parsers=Parsers(tools="qwen25"))
    with client(served).stream(model="any", max_tokens=200, tools=[SEARCH], messages=[ASKED]) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert (final.stop_reason, final.content[1].input) == ("tool_use", {"words": "a b"})
    assert final.usage.output_tokens == len(served.turns[0].tokens_T)


def test_an_answer_that_is_cut_off_says_so(serve, client):
    served = serve([Says("It is somewhere", ends="length")])
    answer = client(served).create(model="any", max_tokens=2, stop_sequences=["x"], messages=[ASKED])
    assert answer.stop_reason == "max_tokens"
    assert (served.router.asked[0].max_new_tokens, served.router.asked[0].stop) == (2, ("\n\n", "x"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text and tools are supported"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "has no name and input_schema"),
        ({"tool_choice": {"type": "any"}, "tools": [SEARCH]}, "tool_choice is not supported"),
        ({"extra_body": {"mcp_servers": []}}, "mcp_servers is not supported"),
    ],
    ids=["picture", "server tool", "forced", "unknown"],
)
def test_what_is_not_supported_is_refused_in_anthropics_form(serve, client, more, message):
    asked = {"model": "any", "max_tokens": 8, "messages": [ASKED], **more}
    with pytest.raises(anthropic.BadRequestError, match=message):
        client(serve([])).create(**asked)
