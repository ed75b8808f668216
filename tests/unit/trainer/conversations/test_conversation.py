"""A sample is what the model and its environment have said, to the token, and each token knows who wrote it."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from rljob_api.sizing.token_limits import longest_prompt, new_tokens
from rljob_trainer.conversations.conversation import Conversation, Limits
from rljob_trainer.conversations.errors import ConversationOverError, GenerateError
from rljob_trainer.conversations.turns import Turns
from rljob_trainer.generator import GenerationFailedError
from rljob_trainer.samples import Prompt
from support.trainer.scripted_model import LOGPROB, Says, ScriptedRouter
from support.waiting import others_run

OPENED = "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n"


class Model:
    """The script without the generator around it."""

    def __init__(self, router: ScriptedRouter) -> None:
        self.router = router
        self.tokens: list[tuple[int, ...]] = []
        self.most: list[int] = []

    async def go_on(self, tokens_T, max_new_tokens, stop):
        self.tokens.append(tokens_T)
        self.most.append(max_new_tokens)
        request = type("Request", (), {"tokens_T": tokens_T, "max_new_tokens": max_new_tokens})()
        return (await self.router.generate(request, 1.0))[0]


def conversation(tokenizer, *script: Says, limits: Limits | None = None, templated: bool = True) -> Conversation:
    tokens = tuple(tokenizer.encode(OPENED, add_special_tokens=False))
    prompt = Prompt("0:0", "1 + 1 =", OPENED, tokens, "2", {})
    model = Model(ScriptedRouter(tokenizer, script))
    return Conversation(prompt, False, model, tokenizer, Turns(tokenizer, templated), limits or Limits(1024, 256))


def run(work):
    return asyncio.run(work)


def test_every_token_knows_its_author_and_its_log_probability(tokenizer):
    made = conversation(tokenizer, Says("1 + 1 =", ends="stop"), Says(" It is 2."))

    async def generate():
        await made.model(stop=["="])
        made.give(" 2")
        await made.model()

    run(generate())
    sample = made.sample()
    pieces = ["1 + 1 =", " 2", " It is 2.<|im_end|>"]
    assert [(segment.text, segment.by_model) for segment in sample.segments] == [
        *zip(pieces, (True, False, True), strict=True)
    ]
    assert tokenizer.decode(sample.tokens_T) == "".join(pieces)
    assert len(sample.tokens_T) == len(sample.logprobs_T) == sum(segment.length for segment in sample.segments)
    assert [value == LOGPROB for value in sample.logprobs_T] == list(sample.own_T)
    assert (sample.text, sample.finish_reason, sample.version, sample.engine) == (" It is 2.", "stop", 0, "engine-0")


def test_the_model_goes_on_from_its_own_tokens_and_not_from_those_of_its_text(tokenizer):
    odd = tokenizer.encode("t", add_special_tokens=False) + tokenizer.encode("he", add_special_tokens=False)
    assert tokenizer.encode(tokenizer.decode(odd), add_special_tokens=False) != odd
    made = conversation(tokenizer, Says("", ends="stop"), Says("yes"))
    first = made._model.router._answer
    made._model.router._answer = lambda said, most: (
        first(said, most)
        if said.text
        else type(first(said, most))(tuple(odd), (LOGPROB,) * len(odd), "the", 0, "e", "stop")
    )

    async def generate():
        await made.model()
        made.give("?")
        await made.model()

    run(generate())
    assert list(made._model.tokens[1][len(made.prompt.tokens_T) :][: len(odd)]) == odd


def test_a_reply_is_the_chat_template_s_and_repeats_no_marker(tokenizer):
    made = conversation(tokenizer, Says("Hm."), Says("2"))

    async def generate():
        await made.model()
        made.reply({"role": "user", "content": "Well?"})
        await made.model()

    run(generate())
    turns = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "Hm."}]
    turns += [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": "2"}]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    assert OPENED + tokenizer.decode(made.sample().tokens_T) + "\n" == whole


def test_a_turn_that_was_cut_off_is_ended_by_the_environment(tokenizer):
    made = conversation(tokenizer, Says("Hm", ends="stop"), Says("2"))

    async def generate():
        await made.model()
        made.reply({"role": "user", "content": "Well?"})

    run(generate())
    assert made.sample().segments[1].text.startswith("<|im_end|>\n<|im_start|>user\nWell?<|im_end|>")


def test_what_is_judged_is_the_last_answer_unless_the_function_says_otherwise(tokenizer):
    made = conversation(tokenizer, Says("2"))
    run(made.model())
    assert (made.sample().text, made.sample("two").text) == ("2", "two")


def test_all_answers_together_are_not_longer_than_max_new_tokens(tokenizer):
    made = conversation(tokenizer, *[Says("1 + 1 = ", ends="stop")] * 9, limits=Limits(1024, 20))

    async def generate():
        while True:
            await made.model()
            made.give("?")

    with pytest.raises(ConversationOverError):
        run(generate())
    sample = made.sample()
    assert (len(sample.own_tokens), sample.finish_reason, sample.dropped) == (20, "length", False)


def test_max_tokens_of_one_answer_leaves_the_rest_to_the_others(tokenizer):
    made = conversation(tokenizer, Says("1 + 1 = 2"), Says("2"), limits=Limits(1024, 20))

    async def generate():
        return (await made.model(max_tokens=3)).finish_reason, (await made.model()).finish_reason

    assert run(generate()) == ("length", "stop")
    assert made._model.most == [3, 17]
    assert made.sample().finish_reason == "stop"


@pytest.mark.parametrize(("overflow", "dropped"), [("Truncate", False), ("Drop", True)])
def test_a_conversation_that_outgrows_the_context_ends_there(tokenizer, overflow, dropped):
    made = conversation(tokenizer, *[Says("Hm.")] * 99, limits=Limits(60, 500, overflow))

    async def generate():
        while True:
            await made.model()
            made.reply({"role": "user", "content": "Well?"})

    with pytest.raises(ConversationOverError):
        run(generate())
    sample = made.sample()
    assert (sample.finish_reason, sample.dropped) == ("length", dropped)
    assert sample.segments[-1].by_model
    assert len(made.prompt.tokens_T) + len(sample.tokens_T) <= 60


@pytest.mark.parametrize(("overflow", "dropped"), [("Truncate", False), ("Drop", True)])
def test_an_answer_that_the_context_cuts_off_has_outgrown_it(tokenizer, overflow, dropped):
    made = conversation(tokenizer, Says("1 + 1 = " * 50), limits=Limits(60, 500, overflow))
    assert run(made.model()).finish_reason == "length"
    assert made.sample().dropped == dropped


def test_an_answer_that_uses_up_max_new_tokens_has_not_outgrown_the_context(tokenizer):
    used = len(tokenizer.encode(OPENED, add_special_tokens=False))
    made = conversation(tokenizer, Says("1 + 1 = " * 50), limits=Limits(used + 22, 20, "Drop"))
    assert run(made.model()).finish_reason == "length"
    assert not made.sample().dropped


@given(some.integers(8, 200), some.integers(1, 200), some.integers(1, 100))
def test_no_request_is_one_that_the_engine_refuses_or_cuts_short(context, used, most):
    made = min(new_tokens(context, used), most)
    assert made < 1 or used <= longest_prompt(context, None, made)
    assert new_tokens(context, used) < 1 or used > longest_prompt(context, None, new_tokens(context, used) + 1)


def test_answers_of_different_weights_make_no_sample(tokenizer):
    made = conversation(tokenizer, Says("1"), Says("2", version=1))

    async def generate():
        await made.model()
        await made.model()

    with pytest.raises(GenerationFailedError, match="0:0: the weights have changed"):
        run(generate())
    with pytest.raises(GenerationFailedError, match="0:0: the weights have changed"):
        made.sample()


def test_a_sample_without_a_word_of_the_model_is_an_error(tokenizer):
    made = conversation(tokenizer)
    made.give("2")
    with pytest.raises(GenerateError, match="0:0: the model was not asked"):
        made.sample()


def test_a_reply_needs_a_chat_template_and_something_to_reply_to(tokenizer):
    with pytest.raises(GenerateError, match="the model was not asked yet"):
        conversation(tokenizer).reply({"role": "user", "content": "Well?"})
    with pytest.raises(GenerateError, match=r"data.chatTemplate is false; use give\(\)"):
        conversation(tokenizer, templated=False).reply({"role": "user", "content": "Well?"})


@settings(deadline=None, max_examples=40)
@given(some.lists(some.tuples(some.booleans(), some.text("ab 1+=?", min_size=1, max_size=9)), min_size=1, max_size=9))
def test_segments_always_add_up(tokenizer, steps):
    made = conversation(tokenizer, *[Says(text) for by_model, text in [(True, "."), *steps] if by_model])

    async def generate():
        await made.model()
        for by_model, text in steps:
            await made.model() if by_model else made.give(text)

    run(generate())
    sample = made.sample()
    assert tokenizer.decode(sample.tokens_T) == "".join(segment.text for segment in sample.segments)
    assert sample.num_trained == len(sample.own_tokens) == sum(each.length for each in sample.segments if each.by_model)


def test_a_conversation_is_not_asked_twice_at_once(tokenizer):
    made = conversation(tokenizer, Says("1"), Says("2"))

    async def generate():
        async with asyncio.TaskGroup() as both:
            both.create_task(made.model())
            both.create_task(made.model())

    made._model.go_on = slowly(made._model.go_on)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="asked already")):
        run(generate())


def slowly(work):
    async def later(*arguments):
        await others_run()
        return await work(*arguments)

    return later
