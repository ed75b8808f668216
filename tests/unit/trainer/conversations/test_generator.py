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
from rljob_trainer.reporting.losses import AwayError, Outage
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
        ("own_generate:empty", r"own_generate:empty takes \(\); expected \(conversation\)"),
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


class Environment:
    """Fails the first calls, or those of some numbers."""

    def __init__(self, *failing: int) -> None:
        self.failing, self.calls = failing, 0

    async def __call__(self, conversation):
        self.calls += 1
        number = self.calls
        await conversation.model()
        if number in self.failing:
            raise ConnectionResetError("the sandbox service has reset the connection")


def test_an_environment_that_fails_once_costs_nothing(made):
    outage = Outage("the environment")
    samples, _ = made(Environment(2), lambda text: Says("2"), num_samples=4, outage=outage)
    assert len(samples) == 4
    assert outage.losses.take() == {}


def test_samples_whose_environment_always_fails_are_lost_and_end_nothing(made):
    outage = Outage("the environment")
    samples, _ = made(Environment(*range(100)), lambda text: Says("2"), num_samples=3, outage=outage)
    assert samples == ()
    assert outage.losses.take() == {"Generate": 3}
    assert "own:function: prompt 0:0: failed with ConnectionResetError" in str(outage.losses.last)


def test_an_environment_that_has_worked_and_is_away_is_waited_for(made):
    outage = Outage("the environment", has_worked=True)
    environment = Environment(*range(20))
    samples, _ = made(environment, lambda text: Says("2"), outage=outage)
    assert (len(samples), environment.calls) == (1, 20)


def test_one_that_stays_away_ends_the_attempt(made):
    outage = Outage("the environment", has_worked=True, longest_s=60.0)
    with pytest.raises(AwayError, match=r"the environment has not worked for \d+ s .*ConnectionResetError"):
        made(Environment(*range(1000)), lambda text: Says("2"), num_samples=2, outage=outage)


def test_a_request_that_engines_refuse_costs_its_sample(made):
    outage = Outage("the environment")
    refused = EngineRefusedError("router: POST /generate: 400 too long")
    samples, _ = made(asks_twice, [refused] * 3, outage=outage)
    assert (samples, outage.losses.take()) == ((), {"Refused": 1})


def test_a_function_that_is_too_slow_is_not_called_again(made, monkeypatch):
    monkeypatch.setattr("rljob_trainer.conversations.generator.LOOK_S", 0.01)
    outage, clock, calls = Outage("the environment", has_worked=True), Clock(), []

    async def hangs(conversation):
        calls.append(conversation)
        clock.now += 100.0
        await asyncio.Event().wait()

    samples, _ = made(hangs, [], own_time_s=30.0, clock=clock, outage=outage)
    assert (samples, len(calls), outage.losses.take()) == ((), 1, {"Generate": 1})


def test_waiting_for_one_s_turn_is_not_time_of_one_s_own(made):
    clock = Clock()

    async def computes(conversation):
        clock.now += 0.2  # without giving way to the others
        await conversation.model()

    samples, _ = made(computes, lambda text: Says("2"), num_samples=400, own_time_s=30.0, clock=clock)
    assert (len(samples), round(clock.now)) == (400, 80)
