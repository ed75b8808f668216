"""OpenAI's own client at the gateway: what it reads, and which tokens the session keeps."""

import asyncio
import threading
from dataclasses import replace

import httpx
import openai
import pytest

from rljob_trainer.gateway import chat
from rljob_trainer.gateway.requests import MOST_BYTES
from support.trainer.scripted_gateway import OPENING, SETTINGS
from support.trainer.scripted_model import LOGPROB, LOST, Says

ONE = {"role": "user", "content": "1 + 1 ="}
TWO = {"role": "user", "content": "And 2 + 2?"}
OPENED = "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n"
BETWEEN = "\n<|im_start|>user\nAnd 2 + 2?<|im_end|>\n<|im_start|>assistant\n"


def said(answer):
    return answer.choices[0].message


def test_a_client_reads_the_answer_and_the_session_keeps_its_tokens(serve, tokenizer):
    served = serve([Says("two")])
    answer = served.ask([ONE], logprobs=True)
    assert (said(answer).content, answer.choices[0].finish_reason) == ("two", "stop")
    (turn,) = served.turns
    assert tokenizer.decode(list(turn.given_T)) == turn.given == OPENED
    assert turn.said == "two<|im_end|>"
    assert answer.usage.completion_tokens == len(turn.tokens_T) == len(answer.choices[0].logprobs.content)
    assert [each.logprob for each in answer.choices[0].logprobs.content] == [LOGPROB] * len(turn.tokens_T)


def test_tokens_are_drawn_as_the_job_says_whatever_the_client_asks(serve):
    served = serve([Says("two")])
    served.ask([ONE], temperature=0.0, top_p=0.1, seed=3, stop=["x"], max_tokens=5)
    (asked,) = served.router.asked
    assert (asked.temperature, asked.top_p, asked.top_k) == (0.7, 0.9, 20)
    assert (asked.stop, asked.max_new_tokens) == (("\n\n", "x"), 5)


def test_a_longer_history_continues_the_tokens_as_they_were_sampled(serve, tokenizer):
    served = serve([Says("two"), Says("four")])
    first = said(served.ask([ONE]))
    served.ask([ONE, first, TWO])
    one, two = served.turns
    assert (two.parent, two.given) == (0, BETWEEN)
    assert served.router.asked[1].tokens_T == (*one.given_T, *one.tokens_T, *two.given_T)


def test_an_answer_is_not_tokenised_again_where_its_text_would_give_other_tokens(serve, tokenizer):
    letters = tuple(tokenizer.encode("t", add_special_tokens=False) + tokenizer.encode("wo", add_special_tokens=False))
    served = serve([Says("two"), Says("four")])
    first = said(served.ask([ONE]))
    served.session.tree.turns[0] = replace(served.turns[0], tokens_T=letters)
    served.ask([ONE, first, TWO])
    before = served.turns[0].given_T
    assert served.router.asked[1].tokens_T[len(before) :][: len(letters)] == letters


@pytest.mark.parametrize("trimmed", [" two ", "two"])
def test_a_client_that_trims_an_answer_still_continues_it(serve, trimmed):
    served = serve([Says("two "), Says("four")])
    served.ask([ONE])
    served.ask([ONE, {"role": "assistant", "content": trimmed}, TWO])
    assert served.turns[1].parent == 0


@pytest.mark.parametrize(
    "history",
    [
        [ONE, {"role": "assistant", "content": "three"}, TWO],
        [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "two"}, TWO],
        [{"role": "user", "content": "So far: 1 + 1 = two."}, TWO],
    ],
    ids=["answer", "question", "summary"],
)
def test_an_edited_history_begins_a_branch(serve, history):
    served = serve([Says("two"), Says("four")])
    served.ask([ONE])
    served.ask(history)
    assert [turn.parent for turn in served.turns] == [None, None]


def test_a_part_of_a_history_that_is_as_it_was_stays_as_it_was_sampled(serve):
    served = serve([Says("two"), Says("four"), Says("five")])
    first = said(served.ask([ONE]))
    served.ask([ONE, first, TWO])
    served.ask([ONE, first, {"role": "user", "content": "And 2 + 3?"}])
    assert [turn.parent for turn in served.turns] == [None, 0, 0]


def test_several_answers_are_turns_beside_each_other(serve):
    served = serve([Says("two"), Says("2")])
    answer = served.ask([ONE], n=2)
    assert {choice.message.content for choice in answer.choices} == {"two", "2"}
    assert [turn.parent for turn in served.turns] == [None, None]
    served.router._left.append(Says("four"))
    served.ask([ONE, answer.choices[0].message, TWO])
    assert served.turns[2].parent == 0


def test_a_stream_has_the_same_answer(serve):
    served = serve([Says("two")])
    with served.client() as client:
        stream = client.chat.completions.create(
            model="any", messages=[ONE], stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "two"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == len(served.turns[0].tokens_T)


def test_an_answer_that_is_cut_off_is_continued_behind_its_last_token(serve):
    served = serve([Says("two and", ends="length"), Says("four")])
    answer = served.ask([ONE])
    assert answer.choices[0].finish_reason == "length"
    served.ask([ONE, said(answer), TWO])
    assert served.turns[1].given == "<|im_end|>" + BETWEEN


def test_an_answer_in_a_format_is_not_trained_on(serve):
    served = serve([Says("{}")])
    served.ask([ONE], response_format={"type": "json_object"})
    assert served.router.asked[0].json_schema == '{"type": "object"}'
    assert not served.turns[0].trained


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"presence_penalty": 1.0}, "presence_penalty is not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not supported"),
        ({"top_logprobs": 3, "logprobs": True}, "top_logprobs is not supported"),
        ({"n": 17}, "n 17 is not a whole number of 1 to 16"),
        ({"extra_body": {"continue_final_message": True}}, "continue_final_message is not supported"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "a"}}]}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "response_format is none of"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_what_is_not_supported_is_refused_with_its_name(serve, more, message):
    served = serve([])
    with pytest.raises(openai.BadRequestError, match=message):
        served.ask([ONE], **more)
    assert message in served.session.first_refusal or not served.turns


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ([{"role": "robot", "content": "x"}], "messages\\[0\\] has no role of"),
        ([ONE, {"role": "assistant", "content": "tw"}], "continuing one is not supported"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "only text is supported"),
    ],
    ids=["empty", "role", "prefix", "picture"],
)
def test_messages_that_no_model_can_be_given_are_refused(serve, messages, message):
    with pytest.raises(openai.BadRequestError, match=message):
        serve([]).ask(messages)


def test_another_key_opens_no_session(serve):
    served, other = serve([]), serve([])
    with served.client(other.session.key) as client, pytest.raises(openai.AuthenticationError):
        client.chat.completions.create(model="any", messages=[ONE])
    answers = [
        httpx.get(f"{served.url}/health"),
        httpx.delete(f"{served.url}/sessions/{served.session.name}"),
        httpx.post(f"{served.url}/sessions", headers={"Authorization": f"Bearer {served.session.key}"}, json={}),
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 401]


def test_a_body_that_is_too_large_is_refused(serve):
    with pytest.raises(openai.APIStatusError) as refused:
        serve([]).ask([{"role": "user", "content": "x" * MOST_BYTES}])
    assert refused.value.status_code == 413


def test_what_is_not_here_is_said_in_openais_form(serve):
    with serve([]).client() as client, pytest.raises(openai.NotFoundError, match="is not here"):
        client.embeddings.create(model="any", input="x")


@pytest.mark.parametrize(
    ("change", "over"),
    [({"turns": 1}, "turns"), ({"new_tokens": 3}, "tokens"), ({"context": 40}, "context")],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_session_ends_at_its_limits(serve, change, over):
    served = serve([Says("two and some more"), Says("four")], replace(SETTINGS, **change))
    first = said(served.ask([ONE]))
    with pytest.raises(openai.BadRequestError):
        served.ask([ONE, first, TWO])
    assert served.session.over == over
    assert len(served.turns) == 1


def test_an_engine_that_is_lost_is_not_noticed(serve):
    served = serve([LOST, Says("", ends="abort"), Says("two")])
    assert said(served.ask([ONE])).content == "two"
    assert len(served.turns) == 1


def test_engines_that_stay_away_are_the_services_fault(serve):
    served = serve(lambda text: LOST, replace(SETTINGS, patience_s=0.0))
    with pytest.raises(openai.InternalServerError):
        served.ask([ONE])
    assert "no engine has answered" in served.session.away


def test_requests_wait_while_the_engines_are_full(serve, tokenizer, monkeypatch):
    monkeypatch.setattr(chat, "MOST_IN_FLIGHT", 1)
    served = serve(lambda text: Says("two"))
    entered, leave, most = threading.Semaphore(0), threading.Event(), []
    answer, inside = served.router.generate, []

    async def slow(request, deadline_s):
        inside.append(request)
        most.append(len(inside))
        entered.release()
        await asyncio.to_thread(leave.wait)
        inside.pop()
        return await answer(request, deadline_s)

    served.router.generate = slow
    asking = [threading.Thread(target=served.ask, args=([ONE],)) for _ in range(3)]
    for each in asking:
        each.start()
    assert entered.acquire(timeout=30)
    leave.set()
    for each in asking:
        each.join(30)
    assert max(most) == 1
    assert len(served.turns) == 3


def test_a_session_that_is_not_closed_is_forgotten(serve):
    now = [0.0]
    served = serve([], clock=lambda: now[0])
    now[0] = SETTINGS.lifetime_s + 1
    served.gateway.open(OPENING)
    assert served.gateway.num_sessions == 1


@pytest.mark.parametrize("stream", [False, True])
def test_requests_to_engines_name_the_session_and_turns_what_was_cached(serve, stream):
    served = serve([Says("two", cached=7)])
    with served.client() as client:
        asked = [{"role": "user", "content": "1 + 1 ="}]
        list(client.chat.completions.create(model="any", messages=asked, stream=stream))
    assert [each.session for each in served.router.asked] == [served.session.name]
    assert [turn.cached for turn in served.turns] == [7]


def test_the_usage_of_an_answer_has_what_was_cached_of_its_prompt(serve):
    served = serve([Says("two", cached=7), Says("two", cached=8)])
    assert served.ask([{"role": "user", "content": "1 + 1 ="}]).usage.prompt_tokens_details.cached_tokens == 7
    with served.client() as client:
        assert client.responses.create(model="any", input="1 + 1 =").usage.input_tokens_details.cached_tokens == 8
