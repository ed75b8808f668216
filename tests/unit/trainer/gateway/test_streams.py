"""Streams: tokens leave as the engine samples them, in the form of each API, and stay as they were sampled."""

import asyncio
import threading
from dataclasses import replace

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as some

from rljob_trainer.engines.client import Continuation
from rljob_trainer.gateway.growing import GrowingText
from rljob_trainer.gateway.parsing import Parsers
from support.trainer.scripted_gateway import SETTINGS
from support.trainer.scripted_model import LOST, Says
from support.waiting import until

ASKED = {"role": "user", "content": "1 + 1 ="}
MORE = {"role": "user", "content": "And 2 + 2?"}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "search", "arguments": {"words": "a b"}}\n</tool_call>'
WAIT_S = 30.0


class Gate:
    """Lets the first tokens of a stream go, and the others when it is opened."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.opened = threading.Event()

    async def __call__(self, at: int) -> None:
        if at >= self.free:
            assert await asyncio.to_thread(self.opened.wait, WAIT_S)


def chat_texts(client):
    stream = client.chat.completions.create(model="any", messages=[ASKED], stream=True)
    return (text for chunk in stream if (text := chunk.choices[0].delta.content))


def response_texts(client):
    stream = client.responses.create(model="any", input="1 + 1 =", stream=True)
    return (event.delta for event in stream if event.type == "response.output_text.delta")


def message_texts(client):
    url = str(client.base_url).removesuffix("/").removesuffix("/v1")
    other = anthropic.Anthropic(base_url=url, api_key=client.api_key, max_retries=0)
    stream = other.messages.create(model="any", max_tokens=99, messages=[ASKED], stream=True)
    return (event.delta.text for event in stream if event.type == "content_block_delta")


@pytest.mark.parametrize("texts", [chat_texts, response_texts, message_texts])
def test_a_token_leaves_before_the_next_one_is_sampled(serve, texts):
    served = serve([Says("two and some more")])
    gate = served.router.lets_go = Gate(free=1)
    with served.client() as client:
        stream = texts(client)
        first = next(stream)
        assert not gate.opened.is_set()
        gate.opened.set()
        rest = list(stream)
    assert "".join([first, *rest]) == "two and some more"
    assert len(rest) > 1
    (turn,) = served.turns
    assert turn.said == "two and some more<|im_end|>"
    assert (turn.finish_reason, len(turn.logprobs_T)) == ("stop", len(turn.tokens_T))


def test_a_client_that_hangs_up_leaves_a_turn_of_the_tokens_that_were_made(serve, tokenizer):
    served = serve([Says("two and some more"), Says("four")])
    gate = served.router.lets_go = Gate(free=1)
    with served.client() as client:
        stream = client.chat.completions.create(model="any", messages=[ASKED], stream=True)
        texts = (text for chunk in stream if (text := chunk.choices[0].delta.content))
        first = next(texts)
        stream.close()
        gate.opened.set()
    until(lambda: bool(served.turns))
    (turn,) = served.turns
    whole = tokenizer.encode("two and some more", add_special_tokens=False)
    assert list(turn.tokens_T) == whole[: len(turn.tokens_T)]
    assert turn.text.startswith(first)
    wanted = "abort" if len(turn.tokens_T) < len(whole) + 1 else "stop"
    assert turn.finish_reason == wanted
    served.ask([ASKED, {"role": "assistant", "content": turn.text}, MORE])
    assert served.turns[1].parent == 0


def test_an_answer_that_only_its_end_explains_is_made_to_its_end(serve):
    """With replay an engine says at its end which experts it used: a sample without them would end the run."""
    served = serve([Says("two and some more")], replace(SETTINGS, whole=True))
    gate = served.router.lets_go = Gate(free=1)
    with served.client() as client:
        stream = client.chat.completions.create(model="any", messages=[ASKED], stream=True)
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.close()
        gate.opened.set()
    until(lambda: bool(served.turns))
    assert served.turns[0].said == "two and some more<|im_end|>"


class Interrupted:
    """An engine that is lost, or gets new weights, after the first tokens of its first answer."""

    def __init__(self, router, error, version):
        self.generate, self.asked, self.lets_go = router.generate, router.asked, router.lets_go
        self._stream, self._error, self._version, self._lives = router.stream, error, version, 0

    async def stream(self, request, deadline_s):
        self._lives += 1
        parts = [part async for part in self._stream(request, deadline_s)]
        if self._lives > 1:
            for part in parts:
                yield replace(part, version=self._version)
            return
        for part in parts[:2]:
            yield part
        if isinstance(self._error, Exception):
            raise self._error
        yield Continuation((), (), "", 0, "engine-0", "abort")


@pytest.mark.parametrize("end", [LOST, "abort"], ids=["lost", "aborted"])
@pytest.mark.parametrize(("version", "turns"), [(0, 1), (1, 2)], ids=["same weights", "new weights"])
def test_another_engine_goes_on_behind_the_last_token(serve, tokenizer, end, version, turns):
    said = "two and some more"
    begun = tokenizer.decode(tokenizer.encode(said, add_special_tokens=False)[:2])
    served = serve([Says(said), Says(said.removeprefix(begun)), Says("four")])
    served.session.engines.router = Interrupted(served.router, end, version)
    with served.client() as client:
        text = "".join(chat_texts(client))
    assert text == said
    assert served.router.asked[1].tokens_T[-2:] == served.turns[0].tokens_T[:2]
    assert "".join(turn.said for turn in served.turns) == f"{said}<|im_end|>"
    assert [turn.version for turn in served.turns] == [0, 1][:turns] if version else [0]
    assert [turn.parent for turn in served.turns] == [None, 0][:turns]
    served.ask([ASKED, {"role": "assistant", "content": said}, MORE])
    assert served.turns[-1].parent == turns - 1


@pytest.mark.parametrize("texts", [chat_texts, message_texts])
def test_a_stream_that_cannot_go_on_says_so(serve, texts):
    served = serve([Says("two and some more")], replace(SETTINGS, patience_s=0.0))
    served.session.engines.router = Interrupted(served.router, LOST, 0)
    served.session.engines.clock = iter(range(100)).__next__
    with served.client() as client, pytest.raises((openai.APIError, anthropic.APIError), match="no engine"):
        list(texts(client))
    assert "no engine has answered" in served.session.away
    assert [len(turn.tokens_T) for turn in served.turns] == [2]


def test_several_answers_stream_beside_each_other(serve):
    served = serve([Says("two"), Says("2")])
    with served.client() as client:
        chunks = list(client.chat.completions.create(model="any", messages=[ASKED], stream=True, n=2, logprobs=True))
    choices = [chunk.choices[0] for chunk in chunks]
    texts = {index: "".join(each.delta.content or "" for each in choices if each.index == index) for index in (0, 1)}
    assert set(texts.values()) == {"two", "2"}
    ended = [each for each in choices if each.finish_reason]
    assert [len(each.logprobs.content) for each in ended] == [len(turn.tokens_T) for turn in served.turns]


def test_text_streams_until_a_call_begins_and_the_call_is_whole(serve):
    served = serve([Says(f"<think>Hm.</think>Let me see.\n{CALL}")], parsers=Parsers("qwen25", "qwen3"))
    with served.client() as client:
        stream = client.chat.completions.create(model="any", messages=[ASKED], tools=[SEARCH], stream=True)
        deltas = [chunk.choices[0].delta for chunk in stream]
    texts = [each.content for each in deltas if each.content]
    assert len(texts) > 1
    assert "".join(texts).strip() == "Let me see."
    assert "".join(getattr(each, "reasoning_content", None) or "" for each in deltas) == "Hm."
    calls = [call for each in deltas for call in each.tool_calls or ()]
    assert "".join(call.function.arguments for call in calls) == '{"words": "a b"}'
    message = {"role": "assistant", "content": "Let me see.", "tool_calls": [calls[0].model_dump()]}
    message["tool_calls"][0]["function"]["arguments"] = '{"words": "a b"}'
    served.router._left.append(Says("four"))
    served.ask([ASKED, message, {"role": "tool", "tool_call_id": calls[0].id, "content": "4"}], tools=[SEARCH])
    assert served.turns[1].parent == 0


def test_a_format_is_one_piece(serve):
    served = serve([Says("{}")])
    with served.client() as client:
        asked = {"model": "any", "messages": [ASKED], "stream": True, "response_format": {"type": "json_object"}}
        deltas = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**asked)]
    assert "".join(filter(None, deltas)) == "{}"
    assert not served.turns[0].trained


@given(some.text(max_size=12), some.lists(some.text("ab\n", min_size=1, max_size=3), max_size=2), some.randoms())
def test_the_pieces_of_a_text_are_the_text_up_to_its_stop(text, stops, random):
    """Tokens are bytes here, so a character may need several of them."""
    tokens = list(text.encode())
    growing = GrowingText(lambda some: bytes(some).decode(errors="replace"), stops)
    pieces = []
    while tokens:
        size = random.randint(1, 3)
        head, tokens = tokens[:size], tokens[size:]
        pieces.append(growing.add(head, is_last=not tokens))
    end = min((text.index(each) for each in stops if each in text), default=len(text))
    assert "".join(pieces) == text[:end]
