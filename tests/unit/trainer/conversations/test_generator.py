"""Samples are complete whatever engines and functions do, or the run ends with what is wrong."""

import asyncio
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest

from rljob_api.sections import Sampling
from rljob_trainer.conversations.conversation import Limits
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.conversations.function import Function, load
from rljob_trainer.conversations.generator import Engines, FunctionGenerator
from rljob_trainer.conversations.turns import Turns
from rljob_trainer.engines.client import EngineRefusedError
from rljob_trainer.generator import RolloutTimeoutError
from rljob_trainer.processes.background import Background
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.samples import Prompt
from support.trainer.scripted_model import LOST, Says, ScriptedRouter
from support.trainer.synthetic_run import Clock

OPENED = "<|im_start|>user\n1 + 1 =<|im_end|>\n<|im_start|>assistant\n"
SAMPLING = Sampling(temperature=0.7, max_new_tokens=64, stop=("\n\n",))


async def asks_twice(conversation):
    await conversation.model()
    conversation.reply({"role": "user", "content": "Well?"})
    await conversation.model()


def test_each_sample_is_a_conversation_of_its_own(made):
    samples, asked = made(asks_twice, lambda text: Says("2" if "Well?" in text else "Hm."), num_samples=3)
    assert [[segment.by_model for segment in sample.segments] for sample in samples] == [[True, False, True]] * 3
    assert [sample.text for sample in samples] == ["2"] * 3
    assert len(asked) == 6


def test_an_engine_that_is_lost_in_the_middle_is_not_noticed(made):
    (sample,), asked = made(asks_twice, [Says("Hm."), LOST, Says("", ends="abort"), Says("2")])
    assert sample.text == "2"
    assert asked[1] == asked[2] == asked[3]


def test_a_sample_of_different_weights_is_begun_again(made):
    (sample,), asked = made(
        asks_twice, [Says("Hm."), Says("old", version=1), Says("Hm.", version=1), Says("2", version=1)]
    )
    assert (sample.text, sample.version, len(asked)) == ("2", 1, 4)
    assert asked[0] == asked[2]


@pytest.mark.parametrize(("greedy", "temperature"), [(False, 0.7), (True, 0.0)])
def test_samples_are_drawn_as_the_manifest_says_and_evaluations_greedily(made, greedy, temperature):
    async def stops(conversation):
        await conversation.model(stop=["="])

    _, (asked,) = made(stops, [Says("1 + 1 =", ends="stop")], greedy=greedy)
    assert (asked.temperature, asked.num_samples, asked.max_new_tokens) == (temperature, 1, 64)
    assert asked.stop == ("\n\n", "=")


def test_what_a_function_raises_ends_the_run_and_names_function_and_prompt(made):
    async def divides(conversation):
        await conversation.model()
        return 1 / 0

    with pytest.raises(
        GenerateError, match=r"own:function: prompt 0:0: failed with ZeroDivisionError: division by zero"
    ):
        made(divides, [Says("2")])


def test_a_function_that_returns_no_text_is_an_error(made):
    async def counts(conversation):
        return len((await conversation.model()).text)

    with pytest.raises(
        GenerateError, match=r"own:function: prompt 0:0: returned 1; a text to judge, or None, is wanted"
    ):
        made(counts, [Says("2")])


def test_a_request_that_is_wrong_is_not_sent_again(made):
    with pytest.raises(EngineRefusedError, match="400"):
        made(asks_twice, [EngineRefusedError("router: POST /generate: 400 too long")])


def test_a_function_that_waits_for_ever_is_late(made):
    clock = Clock()

    async def waits(conversation):
        clock.now += 31.0
        await asyncio.Event().wait()

    with pytest.raises(GenerateError, match=r"0:0: took longer than 30 s \(generateTimeoutSeconds\)"):
        made(waits, [], own_time_s=30.0, clock=clock)


def test_a_function_that_holds_up_its_loop_does_not_hold_up_ours(made):
    clock, released = Clock(), threading.Event()

    async def blocks(conversation):
        clock.now += 31.0
        released.wait()

    with pytest.raises(GenerateError, match=r"took longer than 30 s"):
        made(blocks, [], own_time_s=30.0, clock=clock)
    released.set()


def test_waiting_for_engines_is_not_the_function_s_time(made):
    clock, answers = Clock(), iter([LOST, Says("2"), LOST, Says("2")])

    def slowly(text):
        clock.now += 20.0
        return next(answers)

    (sample,), _ = made(asks_twice, slowly, own_time_s=30.0, clock=clock)
    assert sample.text == "2"
    assert clock.now == 80.0


def test_engines_that_never_answer_end_the_run(made):
    with pytest.raises(RolloutTimeoutError, match=r"no engine has answered within 0.5 s: router: POST /generate"):
        made(asks_twice, lambda text: LOST, patience_s=0.5)


def test_a_pause_between_two_prompts_is_no_silence_of_the_engines(tokenizer):
    now = [0.0]
    answers = iter([Says("Hm."), Says("2"), LOST, Says("Hm."), Says("3")])
    with Background() as apart:
        router = ScriptedRouter(tokenizer, lambda text: next(answers))
        generator = FunctionGenerator(
            Function("own:function", asks_twice),
            30.0,
            Engines(router, 1.0, 30.0, alive=lambda: None, clock=lambda: now[0]),
            tokenizer,
            Turns(tokenizer, True),
            Limits(1024, 64),
            apart,
        )
        tokens = tuple(tokenizer.encode(OPENED, add_special_tokens=False))
        prompt = Prompt("0:0", "1 + 1 =", OPENED, tokens, "2", {})
        asyncio.run(generator.generate(prompt, SAMPLING, 1, greedy=False))
        now[0] = 3600.0
        (sample,) = asyncio.run(generator.generate(prompt, SAMPLING, 1, greedy=False))
    assert sample.text == "3"


def test_a_function_may_end_where_there_is_no_room(made):
    async def talks(conversation):
        while True:
            await conversation.model()
            conversation.give(" and")

    (sample,), _ = made(talks, lambda text: Says("1 + 1 = 2", ends="stop"))
    assert (sample.finish_reason, len(sample.own_tokens)) == ("length", SAMPLING.max_new_tokens)


MODULE = """
async def good(conversation): ...
def plain(conversation): ...
async def empty(): ...
"""


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no_such_module:generate", "rollout.generate no_such_module:generate: cannot import no_such_module"),
        ("own_generate:nothing", "own_generate has no nothing"),
        ("own_generate:plain", "own_generate:plain is no `async def` function"),
        ("own_generate:empty", r"own_generate:empty takes \(\); \(conversation\) is wanted"),
    ],
)
def test_a_function_that_cannot_make_samples_is_refused_at_once(path, said, tmp_path, monkeypatch):
    (tmp_path / "own_generate.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_generate", raising=False)
    assert load("own_generate:good").name == "rollout.generate own_generate:good"
    with pytest.raises(GenerateError, match=said):
        load(path)


def test_the_sampler_takes_such_samples_as_it_takes_others(tokenizer):
    with ExitStack() as stack:
        apart = stack.enter_context(Background())
        router = ScriptedRouter(tokenizer, lambda text: Says("2" if "Well?" in text else "Hm."))
        generator = FunctionGenerator(
            Function("own:function", asks_twice),
            30.0,
            Engines(router, 1.0, 30.0, alive=lambda: None),
            tokenizer,
            Turns(tokenizer, True),
            Limits(1024, 64),
            apart,
        )
        sampler = Sampler(generator, 30.0, lambda: 0, answered=lambda: None, check=lambda: None)
        tokens = tuple(tokenizer.encode(OPENED, add_special_tokens=False))
        prompts = [replace(Prompt("", "1 + 1 =", OPENED, tokens, "2", {}), uid=f"0:{row}") for row in range(4)]
        groups = asyncio.run(sampler.groups(prompts, SAMPLING, 2))
    assert [(group.prompt.uid, len(group.samples_G)) for group in groups] == [(prompt.uid, 2) for prompt in prompts]
