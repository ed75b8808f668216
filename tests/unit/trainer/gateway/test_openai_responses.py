"""OpenAI's own client at the gateway's responses: what it reads, and which tokens the session keeps."""

import json

import openai
import pytest

from rljob_trainer.gateway.parsing import Parsers
from support.trainer.scripted_model import LOGPROB, Says

SEARCH = {"type": "function", "name": "search", "description": "Search.", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"words": "a b"}}\n</tool_call>'
BETWEEN = "\n<|im_start|>user\nAnd 2 + 2?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture
def client():
    clients = []

    def opened(served):
        clients.append(served.client())
        return clients[-1].responses

    yield opened
    for each in clients:
        each.close()


def test_a_client_reads_the_answer_and_the_session_keeps_its_tokens(serve, client):
    served = serve([Says("two")])
    include = ["message.output_text.logprobs"]
    answer = client(served).create(model="any", input="1 + 1 =", instructions="Add.", include=include)
    assert (answer.output_text, answer.status, answer.instructions) == ("two", "completed", "Add.")
    (turn,) = served.turns
    assert turn.given.startswith("<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1 + 1 =")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(turn.given_T), len(turn.tokens_T))
    logprobs = answer.output[0].content[0].logprobs
    assert [each.logprob for each in logprobs] == [LOGPROB] * len(turn.tokens_T)


def test_an_answer_is_continued_by_its_name(serve, client):
    served = serve([Says("two"), Says("four"), Says("six")])
    ask = client(served).create
    first = ask(model="any", input="1 + 1 =", instructions="Add.")
    second = ask(model="any", input="And 2 + 2?", instructions="Add.", previous_response_id=first.id)
    third = ask(model="any", input="And 2 + 2?", previous_response_id=second.id)
    assert (second.output_text, third.previous_response_id) == ("four", second.id)
    assert [turn.parent for turn in served.turns] == [None, 0, None]  # the instructions are not inherited
    one, two, _ = served.turns
    assert two.given == BETWEEN
    assert served.router.asked[1].tokens_T == (*one.given_T, *one.tokens_T, *two.given_T)


@pytest.mark.parametrize("stored", ["previous", "items"])
def test_results_of_tools_continue_the_tokens_as_they_were_sampled(serve, client, stored):
    served = serve([Says(f"See.\n{CALL}"), Says("It is here.")], parsers=Parsers(tools="qwen25"))
    ask = {"model": "any", "tools": [SEARCH]}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "Where is it?"}]}
    first = client(served).create(input=[asked], **ask)
    message, call = first.output
    assert (message.content[0].text.strip(), call.name) == ("See.", "search")
    assert json.loads(call.arguments) == {"words": "a b"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "here"}
    given = {
        "previous": {"input": [result], "previous_response_id": first.id},
        "items": {"input": [asked, *first.output, result]},
    }
    second = client(served).create(**given[stored], **ask)
    assert second.output_text == "It is here."
    assert [turn.parent for turn in served.turns] == [None, 0]
    assert "here" in served.turns[1].given
    assert "See." not in served.turns[1].given


def test_reasoning_is_an_item_and_may_come_back(serve, client):
    served = serve([Says("<think>Hm.</think>It is here."), Says("Yes.")], parsers=Parsers(reasoning="qwen3"))
    asked = {"role": "user", "content": "Where?"}
    first = client(served).create(model="any", input=[asked], reasoning={"effort": "low"})
    thought, message = first.output
    assert (thought.content[0].text.strip(), message.content[0].text.strip()) == ("Hm.", "It is here.")
    client(served).create(model="any", input=[asked, *first.output, {"role": "user", "content": "Sure?"}])
    assert served.turns[1].parent == 0


def test_an_edited_history_begins_a_branch(serve, client):
    served = serve([Says("two"), Says("four")])
    client(served).create(model="any", input="1 + 1 =")
    history = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "three"}]
    client(served).create(model="any", input=[*history, {"role": "user", "content": "And 2 + 2?"}])
    assert [turn.parent for turn in served.turns] == [None, None]


def test_a_stream_has_the_same_answer(serve, client):
    said = f"<think>Hm.</think>See.\n{CALL}"
    served = serve([Says(said)], parsers=Parsers(tools="qwen25", reasoning="qwen3"))
    with client(served).stream(model="any", input="Where is it?", tools=[SEARCH]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert json.loads(final.output[2].arguments) == {"words": "a b"}
    assert final.usage.output_tokens == len(served.turns[0].tokens_T)
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds.count("output_item.added") == kinds.count("output_item.done") == 3
    written = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert written.strip() == "See."


def test_an_answer_that_is_cut_off_says_so(serve, client):
    served = serve([Says("It is somewhere", ends="length")])
    answer = client(served).create(model="any", input="Where?", max_output_tokens=2)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert served.router.asked[0].max_new_tokens == 2


def test_an_answer_in_a_format_is_not_trained_on(serve, client):
    served = serve([Says("{}")])
    form = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    client(served).create(model="any", input="1", text={"format": form})
    assert served.router.asked[0].json_schema == '{"type": "object"}'
    assert not served.turns[0].trained


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"background": True}, "background is not supported"),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"truncation": "auto"}, "truncation is not supported but for 'disabled'"),
        ({"include": ["file_search_call.results"]}, "include is not a list of"),
        ({"tools": [{"type": "web_search"}]}, "tools\\[0\\] of type 'web_search'"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "names none of the stored"),
        ({"max_output_tokens": 0}, "max_output_tokens 0 is not a whole number"),
        ({"input": []}, "input is neither a text nor a list"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input\\[0\\] of type 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "only text"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format is none of"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input\\[0\\] has no role of"),
        ({"extra_body": {"store": 3}}, "store 3 is not of type bool"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_is_not_supported_is_refused_with_its_name(serve, client, more, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client(serve([])).create(**{"model": "any", "input": "x", **more})


def test_an_answer_that_is_not_stored_cannot_be_continued_by_its_name(serve, client):
    served = serve([Says("two")])
    first = client(served).create(model="any", input="1 + 1 =", store=False)
    with pytest.raises(openai.BadRequestError, match="names none of the stored"):
        client(served).create(model="any", input="And?", previous_response_id=first.id)
