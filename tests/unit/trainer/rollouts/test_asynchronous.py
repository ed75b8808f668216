"""Rollouts ahead of training: when they begin, what they are made with, and what a publication does to them.

Engines are scripted: an answer comes when the test lets it come, of the version that engines hold then.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rljob_api.sections import Async, DynamicSampling, Sampling
from rljob_trainer.cadence import Cadence, Updates
from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.engines.gate import Gate
from rljob_trainer.generator import GenerationFailedError
from rljob_trainer.learners.errors import LearnerLostError
from rljob_trainer.metrics import Publication
from rljob_trainer.processes.background import Background
from rljob_trainer.rollouts.asynchronous import AsyncRollouts
from rljob_trainer.rollouts.dynamic_sampling import DynamicRollouts
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.samples import Prompt, Sample, ScoredGroup
from rljob_trainer.sync.gated_weights import GatedWeights
from support.trainer.synthetic_run import Clock
from support.waiting import becomes_true, others_run, until

ROWS, PROMPTS = 50, 2
SAMPLING = Sampling(max_new_tokens=4)


class Engines:
    """All engines and the router: hold a version, answer when they are let."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.version = 0
        self.asked: list[str] = []
        self.held: set[str] = set()
        """prompts that are not answered for now"""
        self.lost: set[str] = set()
        """prompts whose next request fails"""
        self.dead = False
        self.cut_at: list[int] = []
        """versions held when what ran was cut off"""
        self.made_by: dict[str, tuple[int, int]] = {}
        """versions when a prompt's last request began and ended"""

    async def generate(self, prompt, sampling, num_samples, greedy):
        async with self.gate.passed():
            began = self.version
            self.asked.append(prompt.uid)
            await becomes_true(lambda: prompt.uid not in self.held)
            if self.dead or prompt.uid in self.lost:
                self.lost.discard(prompt.uid)
                raise GenerationFailedError("engine-0 is gone")
            self.made_by[prompt.uid] = (began, self.version)
        return (Sample((7,), (-0.1,), "2", self.made_by[prompt.uid][1], "stop", "engine-0"),) * num_samples

    async def cut(self) -> None:
        self.cut_at.append(self.version)
        self.lost |= self.held
        self.held.clear()


class Weights:
    """Publishes by setting the engines' version; notes who was being answered then."""

    def __init__(self, engines: Engines, background: Background) -> None:
        self.engines, self.background, self.pool = engines, background, self
        self.serving = ("http://engine-0",)
        self.published: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def publish(self, version: int) -> Publication:
        self.meanwhile()
        assert self.engines.gate._inside == 0, "weights change under a request"
        self.engines.version, self.engines.dead = version, False
        self.published.append(version)
        return Publication(version, 0.5, ("engine-0",), {})

    def serving_urls(self) -> tuple[str, ...]:
        return self.serving


class Scene:
    """A run with these settings, without a learner."""

    def __init__(
        self, path: Path, background: Background, settings: Async, steps: int = 6, first_round: int = PROMPTS
    ) -> None:
        self.clock = Clock()
        self.engines = Engines()
        self.weights = Weights(self.engines, background)
        self.journal = Journal(path)
        self.stream = PromptStream(
            Held([Prompt(str(row), "", "", (), "", {}) for row in range(ROWS)]), seed=0, shuffle=False
        )
        self.check: Callable[[], None] = lambda: None
        self.gated = GatedWeights(
            weights=self.weights,
            gate=self.engines.gate,
            due=Updates(settings.update_interval, Cadence(steps, 2, 100), evaluates=True).due,
            cut=self.engines.cut if settings.partial else None,
            clock=self.clock,
        )
        self.sampler = Sampler(
            self.engines,
            30.0,
            lambda: self.engines.version,
            answered=lambda: None,
            check=lambda: self.check(),
            clock=self.clock,
        )
        lead = Lead(steps, settings.max_staleness, settings.update_interval)
        self.rollouts = AsyncRollouts(
            scheduler=PromptScheduler(self.stream, self.journal, lead, first_round),
            sampler=self.sampler,
            sampling=SAMPLING,
            prompts_per_step=PROMPTS,
            samples_per_prompt=2,
            max_staleness=settings.max_staleness,
            background=background,
            waiting=self.gated.rescue,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with Background() as background:
        made: list[Scene] = []

        def begin(**settings) -> Scene:
            own = {name: settings.pop(name) for name in ("first_round", "steps") if name in settings}
            made.append(Scene(tmp_path / "journal", background, Async(**settings), **own))
            made[-1].gated.publish(0)
            return made[-1]

        yield begin
        for each in made:
            each.rollouts.close()
            each.journal.close()


def uids(*rows: int) -> list[str]:
    return [f"0:{row}" for row in rows]


def test_the_next_step_is_asked_while_this_one_is_trained(scene):
    run = scene()
    run.engines.held.update(uids(2, 3))
    groups = run.rollouts.collect(0)
    assert [group.prompt.uid for group in groups] == uids(0, 1)
    until(lambda: run.engines.asked == uids(0, 1, 2, 3))
    run.engines.held.clear()
    run.rollouts.consumed(0)
    run.gated.publish(1)
    assert [group.prompt.uid for group in run.rollouts.collect(1)] == uids(2, 3)
    until(lambda: run.engines.asked[4:] == uids(4, 5))


def ages(run: Scene, steps: int) -> list[int]:
    """Train all steps; return how old the samples of each were."""
    found = []
    for step in range(steps):
        found.append(max(step - sample.oldest for group in run.rollouts.collect(step) for sample in group.samples_G))
        run.rollouts.consumed(step)
        run.gated.publish(step + 1)
    return found


@pytest.mark.parametrize(
    ("settings", "most", "published"),
    [
        ({}, 1, [0, 1, 2, 3, 4, 5, 6]),
        ({"max_staleness": 3}, 3, [0, 1, 2, 3, 4, 5, 6]),
        ({"max_staleness": 2, "update_interval": 2}, 2, [0, 2, 4, 6]),
        ({"max_staleness": 5, "update_interval": 4, "partial": True}, 5, [0, 4, 6]),
    ],
    ids=["one", "three", "every second", "every fourth, cutting"],
)
def test_no_sample_is_older_than_the_bound(scene, settings, most, published):
    run = scene(**settings)
    found = ages(run, 6)
    assert max(found) <= most
    assert max(found) > 0, "rollouts are ahead"
    assert run.weights.published == published


def test_a_sample_beyond_the_bound_is_asked_for_again(scene):
    run = scene()
    run.engines.version = 3
    run.sampler.version = lambda: 3

    class Late(Engines):
        async def generate(self, prompt, sampling, num_samples, greedy):
            self.version = 1 if prompt.uid not in self.asked else 3
            return await super().generate(prompt, sampling, num_samples, greedy)

    run.sampler.generator = late = Late()
    work = run.sampler.groups([run.stream.prompt("0:0")], SAMPLING, 2, oldest=2)
    (group,) = asyncio.run(work)
    assert [sample.version for sample in group.samples_G] == [3, 3]
    assert late.asked == uids(0, 0)


def test_without_partial_a_publication_waits_for_running_requests_and_each_is_of_one_version(scene):
    run = scene()
    run.engines.held.update(uids(3))
    run.rollouts.collect(0)
    until(lambda: run.engines.asked == uids(0, 1, 2, 3))
    publishing = run.rollouts.background.submit(asyncio.to_thread(run.gated.publish, 1))
    until(lambda: run.engines.gate.is_closed)
    assert run.weights.published == [0]
    run.clock.now += 2.5
    run.engines.held.clear()
    assert publishing.result().waited_s == 2.5
    assert run.weights.published == [0, 1]
    assert run.engines.made_by["0:3"] == (0, 0)


def test_a_request_of_a_dead_engine_does_not_hold_up_a_publication_and_gets_the_new_weights(scene):
    run = scene()
    run.engines.held.update(uids(3))
    run.rollouts.collect(0)
    until(lambda: "0:3" in run.engines.asked)
    publishing = threading.Thread(target=run.gated.publish, args=(1,))
    publishing.start()
    run.engines.lost.add("0:3")
    run.engines.held.clear()
    publishing.join()
    run.rollouts.collect(1)
    assert run.engines.made_by["0:3"] == (1, 1)


def test_a_request_that_comes_during_a_publication_waits_for_it(scene):
    run = scene()
    late = []

    def ask() -> None:
        work = run.sampler.groups([run.stream.prompt("0:40")], SAMPLING, 2)
        late.append(run.rollouts.background.submit(work))
        run.rollouts.background.run(others_run(), timeout_s=None)
        assert run.engines.asked == []

    run.weights.meanwhile = ask
    run.gated.publish(1)
    (group,) = late[0].result()
    assert {sample.version for sample in group.samples_G} == {1}


def test_with_partial_a_publication_cuts_off_what_runs(scene):
    run = scene(partial=True)
    run.engines.held.update(uids(3))
    run.rollouts.collect(0)
    until(lambda: "0:3" in run.engines.asked)
    run.gated.publish(1)
    assert run.engines.cut_at[-1] == 0
    run.rollouts.collect(1)
    assert run.engines.made_by["0:3"] == (1, 1)


def test_weights_that_are_not_due_are_reported_as_those_that_engines_hold(scene):
    run = scene(max_staleness=3, update_interval=3)
    assert [run.gated.publish(version).version for version in (1, 2, 3, 4, 5, 6)] == [0, 0, 3, 3, 3, 6]


def test_the_last_weights_and_those_to_be_evaluated_are_published_whatever_the_interval():
    cadence = Cadence(steps=7, save_interval=100, evaluation_interval=5)
    assert [step for step in range(1, 8) if Updates(3, cadence, evaluates=True).due(step)] == [3, 5, 6, 7]
    assert [step for step in range(1, 8) if Updates(3, cadence, evaluates=False).due(step)] == [3, 6, 7]


def test_who_waits_without_engines_gets_the_learner_s_weights_published(scene):
    run = scene(max_staleness=2, update_interval=2)
    run.engines.held.update(uids(2))
    run.rollouts.collect(0)
    run.gated.publish(1)
    run.weights.serving, run.engines.dead = (), True
    run.engines.held.clear()
    run.rollouts.collect(1)
    assert run.weights.published == [0, 1]
    assert run.engines.made_by["0:2"] == (1, 1)


def test_with_engines_nothing_is_published_before_it_is_due(scene):
    run = scene(max_staleness=2, update_interval=2)
    run.gated.publish(1)
    run.gated.rescue()
    assert run.weights.published == [0]


def test_a_lost_learner_ends_the_wait_for_the_next_step(scene):
    run = scene()
    run.engines.held.update(uids(2))
    run.rollouts.collect(0)

    def lost():
        raise LearnerLostError("rank 0 is gone")

    run.check = lost
    with pytest.raises(LearnerLostError):
        run.rollouts.collect(1)


def test_answers_of_an_earlier_step_are_a_sign_of_life_for_a_later_one(scene):
    run = scene()
    run.sampler.timeout_s = 10.0
    run.engines.held.update(uids(0, 1, 2, 3))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(run.rollouts.collect, 0)
        until(lambda: run.engines.asked == uids(0, 1, 2, 3))
        for answered, uid in enumerate(uids(0, 1), 1):
            run.clock.now += 7.0
            run.engines.held.discard(uid)
            until(lambda: len(run.engines.made_by) == answered)  # noqa: B023  # called before the next turn
        first.result()
    run.clock.now += 7.0
    looks: list[None] = []
    run.check = lambda: looks.append(None)
    until(lambda: len(looks) > 1)
    run.engines.held.clear()
    assert len(run.rollouts.collect(1)) == PROMPTS


def test_who_ends_waits_for_nothing(scene):
    run = scene(max_staleness=3)
    run.engines.held.update(uids(*range(2, 8)))
    run.rollouts.collect(0)
    run.rollouts.close()
    asked = list(run.rollouts._asked.values())
    assert [each.cancelled() for each in asked] == [True] * 3


class Judge:
    """Every third group is mixed."""

    def score(self, groups):
        return tuple(ScoredGroup(group, (float(int(group.prompt.uid[2:]) % 3 == 0), 0.0)) for group in groups)


def test_dynamic_sampling_asks_its_further_rounds_with_the_current_weights_and_loses_no_prompt(scene):
    run = scene(max_staleness=2, first_round=4)
    dynamic = DynamicRollouts(run.rollouts, Judge(), PROMPTS, DynamicSampling(over_sample=2))
    for step in range(6):
        groups = dynamic.collect(step)
        assert all(step - sample.oldest <= 2 for group in groups for sample in group.samples_G)
        dynamic.consumed(step)
        run.gated.publish(step + 1)
    assert run.journal.outstanding == ()
    run.journal.check(run.stream.uids)
    consumed = [uid for record in run.journal.records if record.event == "consumed" for uid in record.prompts]
    assert sorted(consumed) == sorted(set(consumed))
    assert len(consumed) > 6 * 4, "there were further rounds"
