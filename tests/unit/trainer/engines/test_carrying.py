"""Responses that were cut off go on with the new weights, and are what one uninterrupted answer would have been."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from rljob_api.sections import Sampling
from rljob_trainer.conversations.generator import Engines
from rljob_trainer.engines.carrying import Carrying, Gated, GatedStreams, joined, overlap
from rljob_trainer.engines.client import Continuation, EngineRefusedError, EngineUnreachableError, TokenRequest
from rljob_trainer.engines.gate import Gate
from rljob_trainer.engines.generation import RouterGenerator
from rljob_trainer.samples import Prompt
from support.waiting import others_run

REQUEST = TokenRequest((1, 2), 1, temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=10, stop_token_ids=(99,))
LOST = EngineUnreachableError("router: no answer")
WORDS = {10: "a", 11: "b", 12: "\n", 99: "."}


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS.get(token, "?") for token in tokens)


def part(tokens: Sequence[int], version: int, end: str = "abort") -> Continuation:
    logprobs = tuple(-version - token / 100 for token in tokens)
    return Continuation(tuple(tokens), logprobs, decode(tokens), version, f"engine-{version}", end)


class Script:
    """Answers in turn; notes what it was asked."""

    def __init__(self, *answers: Continuation | Exception | tuple[Continuation, ...]) -> None:
        self.answers = list(answers)
        self.asked: list[TokenRequest] = []

    async def generate(self, request: TokenRequest, deadline_s: float) -> tuple[Continuation, ...]:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, tuple) else (answer,)


def carried(*answers, request: TokenRequest = REQUEST) -> tuple[tuple[Continuation, ...], list[TokenRequest]]:
    script = Script(*answers)
    return asyncio.run(Carrying(script, decode).generate(request, 1.0)), script.asked


def test_a_response_that_nothing_cuts_off_is_left_alone():
    whole = part([10, 11], 3, "stop")
    assert carried(whole)[0] == (whole,)


def test_what_was_cut_off_goes_on_from_where_it_was_and_each_token_keeps_its_version_and_log_probability():
    (found,), asked = carried(part([10, 11, 10], 3), part([11, 99], 4, "stop"))
    assert found.tokens_T == (10, 11, 11, 99)
    assert found.logprobs_T == pytest.approx((-3.10, -3.11, -4.11, -4.99))
    assert found.carried == ((3, 2), (4, 2))
    assert (found.text, found.version, found.engine, found.finish_reason) == ("abb", 4, "engine-4", "stop")
    assert asked[1].tokens_T == (1, 2, 10, 11)
    assert (asked[1].num_samples, asked[1].max_new_tokens) == (1, 8)


def test_the_last_token_of_a_part_is_made_again_for_it_may_have_ended_the_response():
    (found,), _ = carried(part([10, 99], 3), part([11], 4, "length"))
    assert found.tokens_T == (10, 11)


def test_a_response_may_be_cut_off_often_also_before_its_first_token():
    (found,), asked = carried(
        part([], 3), part([10, 11], 3), part([10], 4), part([11, 10, 11], 5), part([99], 6, "stop")
    )
    assert found.tokens_T == (10, 11, 10, 99)
    assert found.carried == ((3, 1), (5, 2), (6, 1))
    assert [request.max_new_tokens for request in asked] == [10, 10, 9, 9, 7]


def test_parts_of_one_version_count_as_one():
    (found,), _ = carried(part([10, 11], 3), part([11, 10], 3), part([99], 4, "stop"))
    assert found.carried == ((3, 2), (4, 1))


def test_a_lost_engine_costs_only_what_it_was_making():
    (found,), asked = carried(part([10, 11, 10], 3), LOST, LOST, part([99], 4, "stop"))
    assert found.tokens_T == (10, 11, 99)
    assert asked[1] == asked[2] == asked[3]


def test_nothing_is_carried_of_a_request_that_was_never_answered():
    with pytest.raises(EngineUnreachableError):
        carried(LOST)


def test_a_forced_answer_that_was_cut_off_begins_again_because_its_format_does():
    (found,), asked = carried(
        part([10, 11], 3), part([11, 99], 4, "stop"), request=replace(REQUEST, json_schema='{"type": "object"}')
    )
    assert (found.tokens_T, found.carried) == ((11, 99), ())
    assert [each.tokens_T for each in asked] == [(1, 2), (1, 2)]


def test_who_waits_for_the_rest_of_a_response_may_give_up():
    def failed(reason: str) -> None:
        raise TimeoutError(reason)

    router = Carrying(Script(part([10, 11], 3), LOST), decode, failed)
    with pytest.raises(TimeoutError, match="no answer"):
        asyncio.run(router.generate(REQUEST, 1.0))


def test_a_stream_that_a_publication_may_cut_comes_as_one_part():
    async def streamed():
        engines = Engines(cast(Any, None), 1.0, 1.0, alive=lambda: None)
        engines.carrying = Carrying(Script(part([10, 11], 3), part([99], 4, "stop")), decode)
        return [each async for each in engines.stream(REQUEST)]

    (found,) = asyncio.run(streamed())
    assert (found.tokens_T, found.carried, found.finish_reason) == ((10, 99), ((3, 1), (4, 1)), "stop")


def test_a_stream_passes_the_gate_and_is_inside_until_its_last_part():
    async def scene():
        gate = Gate()

        class Streaming:
            async def stream(self, request, deadline_s):
                yield part([10], 3, "")
                yield part([99], 3, "stop")

        parts = GatedStreams(cast(Any, Streaming()), gate).stream(REQUEST, 1.0)
        await anext(parts)
        await gate.close()
        assert not await gate.emptied(0.01)
        assert [each.tokens_T async for each in parts] == [(99,)]
        assert await gate.emptied()
        held = asyncio.ensure_future(anext(GatedStreams(cast(Any, Streaming()), gate).stream(REQUEST, 1.0)))
        await others_run()
        assert not held.done()
        await gate.open()
        assert (await held).tokens_T == (10,)

    asyncio.run(scene())


def test_a_refusal_ends_the_other_samples_too():
    samples = (part([10, 11], 3), part([10, 11], 3))
    with pytest.raises(EngineRefusedError):
        carried(samples, EngineRefusedError("too long"), LOST, *[LOST] * 50)


def test_samples_of_one_prompt_go_on_each_by_itself():
    samples = (part([10, 11], 3), part([11, 99], 3, "stop"), part([11, 10], 3))
    found, asked = carried(samples, part([99], 4, "stop"), part([10, 99], 4, "stop"))
    assert [each.tokens_T for each in found] == [(10, 99), (11, 99), (11, 10, 99)]
    assert [request.tokens_T for request in asked[1:]] == [(1, 2, 10), (1, 2, 11)]


@pytest.mark.parametrize(
    ("before", "last", "stop", "end"),
    [
        ([11, 12], [12, 10, 10], ("\n\n",), 1),
        ([11, 12], [12, 12], ("\n\n\n",), 2),
        ([11, 12], [10, 12, 12], ("\n\n",), None),
        ([12, 11], [12, 10], ("\n\n",), None),
        ([10, 11], [12], ("\n",), None),
        ([10, 11], [12], (), None),
    ],
    ids=["over the seam", "most of it behind", "all of it behind", "not quite", "one byte has no seam", "none"],
)
def test_a_stop_string_over_the_seam_is_found(before, last, stop, end):
    assert overlap([part(before, 3), part(last, 4)], stop, decode) == end


def test_a_response_ends_at_a_stop_string_that_no_engine_has_seen_whole():
    request = TokenRequest((1,), 1, 1.0, 1.0, -1, 10, stop=("\n\n",))
    (found,), _ = carried(part([10, 12, 11], 3), part([12, 10, 10], 4, "length"), request=request)
    assert (found.tokens_T, found.text, found.finish_reason) == ((10, 12, 12), "a", "stop")
    assert found.carried == ((3, 2), (4, 1))
    assert len(found.logprobs_T) == 3


def test_a_stop_string_over_the_seam_ends_also_a_part_that_was_cut_off():
    request = TokenRequest((1,), 1, 1.0, 1.0, -1, 10, stop=("\n\n",))
    (found,), asked = carried(part([10, 12, 11], 3), part([12, 10, 10], 4, "abort"), request=request)
    assert (found.tokens_T, found.finish_reason, len(asked)) == ((10, 12, 12), "stop", 2)


def test_the_text_leaves_out_what_ended_the_response():
    assert joined([part([10], 3), part([11, 99], 4, "stop")], REQUEST, decode).text == "ab"
    assert joined([part([10], 3), part([11, 10], 4, "length")], REQUEST, decode).text == "aba"


def test_a_carried_sample_knows_its_versions():
    router = Carrying(Script(part([10, 11], 3), part([99], 5, "stop")), decode)
    prompt = Prompt("0:1", "", "", (1, 2), "", {})
    work = RouterGenerator(router, 1.0).generate(prompt, Sampling(max_new_tokens=10), 1, greedy=False)
    (sample,) = asyncio.run(work)
    assert (sample.version, sample.oldest, sample.versions) == (5, 3, ((3, 1), (5, 1)))


def test_nobody_passes_a_closed_gate_and_it_is_empty_when_all_are_answered():
    async def scene():
        gate, answer = Gate(), asyncio.Event()

        class Slow:
            async def generate(self, request, deadline_s):
                await answer.wait()
                return (part([99], 3, "stop"),)

        router = Gated(Slow(), gate)
        first = asyncio.ensure_future(router.generate(REQUEST, 1.0))
        await others_run()
        await gate.close()
        second = asyncio.ensure_future(router.generate(REQUEST, 1.0))
        assert not await gate.emptied(0.01)
        answer.set()
        assert await gate.emptied()
        assert (first.done(), second.done()) == (True, False)
        await gate.open()
        await second

    asyncio.run(scene())


def test_a_request_that_is_given_up_leaves_the_gate():
    async def scene():
        gate = Gate()

        class Silent:
            async def generate(self, request, deadline_s):
                await asyncio.Event().wait()

        task = asyncio.ensure_future(Gated(Silent(), gate).generate(REQUEST, 1.0))
        await others_run()
        assert not await gate.emptied(0.01)
        task.cancel()
        assert await gate.emptied()

    asyncio.run(scene())
