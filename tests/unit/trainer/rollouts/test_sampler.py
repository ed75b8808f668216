"""Groups are complete whatever single requests do."""

import asyncio
from dataclasses import replace
from itertools import count

import pytest

from rljob_api.sections import Sampling
from rljob_trainer.engines.client import EngineRefusedError
from rljob_trainer.generator import GenerationFailedError, RolloutTimeoutError
from rljob_trainer.learners.errors import LearnerLostError
from rljob_trainer.rollouts import sampler
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.samples import Prompt, Sample
from support.trainer.synthetic_run import Clock
from support.waiting import becomes_true, others_run

SAMPLING = Sampling(max_new_tokens=4)
PROMPTS = tuple(Prompt(f"0:{row}", "1 + 1 =", "1 + 1 =", (1, 2, 3), "2", {}) for row in range(5))


class Engine:
    """Fails the first answers to each prompt, then answers under a weights version."""

    def __init__(self, failures: int = 0, versions: tuple[int, ...] = (0,)) -> None:
        self.failures = failures
        self.versions = versions
        self.asked: list[str] = []

    async def generate(self, prompt, sampling, num_samples, greedy):
        times = self.asked.count(prompt.uid)
        self.asked.append(prompt.uid)
        await others_run()
        if times < self.failures:
            raise GenerationFailedError("engine-0 is gone")
        version = self.versions[min(times, len(self.versions) - 1)]
        return (Sample((7,), (-0.1,), "2", version, "stop", "engine-1"),) * num_samples


def groups(engine: Engine, timeout_s: float = 30.0, check=lambda: None, answered=lambda: None, clock=lambda: 0.0):
    asks = Sampler(engine, timeout_s, lambda: 0, answered=answered, check=check, clock=clock)
    return asyncio.run(asks.groups(PROMPTS, SAMPLING, num_samples=3)), asks


def test_every_prompt_gets_one_group_in_order():
    result, _ = groups(Engine())
    assert [(group.prompt.uid, len(group.samples_G)) for group in result] == [(p.uid, 3) for p in PROMPTS]


def test_a_failed_request_is_sent_again_and_counted():
    engine = Engine(failures=1)
    result, asks = groups(engine)
    assert len(result) == len(PROMPTS)
    assert asks.retries == len(PROMPTS)


def test_a_prompt_reports_the_same_trouble_once(caplog):
    with caplog.at_level("INFO"):
        groups(Engine(failures=3))
    assert sorted(record.args[0] for record in caplog.records) == [prompt.uid for prompt in PROMPTS]


def test_a_sample_of_another_weights_version_is_refused():
    result, asks = groups(Engine(versions=(3, 0)))
    assert {sample.version for group in result for sample in group.samples_G} == {0}
    assert asks.retries == len(PROMPTS)


def test_a_group_is_announced_as_soon_as_it_is_there_and_only_with_samples_that_count():
    made, held = [], asyncio.Event()

    class LastIsLate(Engine):
        async def generate(self, prompt, sampling, num_samples, greedy):
            if prompt is PROMPTS[-1]:
                await held.wait()
            return await super().generate(prompt, sampling, num_samples, greedy)

    def arrived(group):
        made.append(group)
        if len(made) == len(PROMPTS) - 1:
            held.set()

    asks = Sampler(LastIsLate(versions=(3, 0)), 30.0, lambda: 0, lambda: None, lambda: None, made=arrived)
    result = asyncio.run(asks.groups(PROMPTS, SAMPLING, num_samples=3))
    assert sorted(each.prompt.uid for each in made) == [prompt.uid for prompt in PROMPTS]
    assert {sample.version for group in made for sample in group.samples_G} == {0}
    assert all(any(each.samples_G is group.samples_G for each in made) for group in result)


def test_where_one_version_is_wanted_a_sample_that_was_carried_over_from_another_is_refused():
    class Carried(Engine):
        async def generate(self, prompt, sampling, num_samples, greedy):
            samples = await super().generate(prompt, sampling, num_samples, greedy)
            first = self.asked.count(prompt.uid) == 1
            return tuple(replace(sample, carried=((-1, 1), (0, 0)) if first else ()) for sample in samples)

    result, asks = groups(Carried())
    assert {sample.carried for group in result for sample in group.samples_G} == {()}
    assert asks.retries == len(PROMPTS)


def test_a_prompt_that_nobody_answers_ends_in_an_error_that_names_it():
    clock = count(step=6.0)
    with pytest.raises(RolloutTimeoutError, match=r"no prompt was answered within 10 s; 5 wait, first 0:0"):
        groups(Engine(failures=1000), timeout_s=10.0, clock=lambda: next(clock))


def test_a_rollout_without_engines_ends_when_the_learner_is_lost():
    looks = iter([None, None, LearnerLostError("the process of learner rank 0 is gone")])

    def check():
        if (error := next(looks)) is not None:
            raise error

    with pytest.raises(LearnerLostError, match="rank 0 is gone"):
        groups(Engine(failures=1000), check=check)


def test_a_rollout_may_take_longer_than_its_deadline_while_answers_come(monkeypatch):
    monkeypatch.setattr(sampler, "LOOK_S", 0.001)
    clock, looks, answers = Clock(), [], []

    class Slow(Engine):
        async def generate(self, prompt, sampling, num_samples, greedy):
            await becomes_true(lambda: len(answers) == PROMPTS.index(prompt))
            clock.now += 7.0
            before = len(looks)
            await becomes_true(lambda: len(looks) > before + 1)
            return await super().generate(prompt, sampling, num_samples, greedy)

    signs = {"check": lambda: looks.append(clock.now), "answered": lambda: answers.append(clock.now)}
    result, _ = groups(Slow(), timeout_s=10.0, clock=clock, **signs)
    assert len(result) == len(PROMPTS)
    assert clock.now == 35.0


class Refusing(Engine):
    """Refuses a prompt, some times or always."""

    def __init__(self, uid: str, times: int) -> None:
        super().__init__()
        self.uid, self.times = uid, times

    async def generate(self, prompt, sampling, num_samples, greedy):
        if prompt.uid == self.uid and self.asked.count(prompt.uid) < self.times:
            self.asked.append(prompt.uid)
            raise EngineRefusedError("router: POST /generate: 400 too long")
        return await super().generate(prompt, sampling, num_samples, greedy)


async def no_pause(seconds: float) -> None:
    """Let nobody wait."""


@pytest.mark.parametrize(("times", "made", "lost"), [(1, [3] * 5, {}), (1000, [3, 3, 0, 3, 3], {"Refused": 3})])
def test_a_prompt_that_engines_refuse_is_asked_again_and_then_lost_alone(times, made, lost):
    engine = Refusing("0:2", times)
    asks = Sampler(engine, 30.0, lambda: 0, lambda: None, lambda: None, pause=no_pause)
    result = asyncio.run(asks.groups(PROMPTS, SAMPLING, num_samples=3))
    assert [len(group.samples_G) for group in result] == made
    assert asks.outage.losses.take() == lost
