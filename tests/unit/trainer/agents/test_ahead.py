"""Agents whose rollouts run ahead of training: a real gateway, real agents, and an engine that a test holds and cuts.

The log-probability of a token says which weights made it.
"""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from rljob_api.sections import Agent, Async, Branches, Sampling
from rljob_trainer.agents.generator import AgentGenerator
from rljob_trainer.agents.trajectory import Counting
from rljob_trainer.agents.workers import AgentWorkers
from rljob_trainer.cadence import Cadence, Updates
from rljob_trainer.data.prompt_scheduler import Lead, PromptScheduler
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.data.read_ahead import Held
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.gateway.client import GatewayProcess, Gateways
from rljob_trainer.gateway.record import Settings
from rljob_trainer.metrics import Publication
from rljob_trainer.processes.background import Background
from rljob_trainer.reporting.losses import Losses, Outage
from rljob_trainer.rollouts.asynchronous import AsyncRollouts
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.rundir.journal import Journal
from rljob_trainer.samples import Prompt, Sample
from rljob_trainer.sync.gated_weights import GatedWeights
from support.trainer.tiny_models import tiny_tokenizer
from support.trainer.whole_run import expected_journal
from support.waiting import until

STEPS, PROMPTS, SAMPLES = 4, 2, 2
AHEAD = Async(max_staleness=2, partial=True)
HELD_AFTER = 3
"""tokens of an answer that is held"""
TURNS = 2
AGENT = f"""
from openai import AsyncOpenAI


async def run(task, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{{"role": "user", "content": task["question"]}}]
        for _ in range({TURNS}):
            answer = await client.chat.completions.create(model="any", messages=messages, max_tokens=12)
            messages += [answer.choices[0].message, {{"role": "user", "content": "Go on."}}]
    return 1.0
"""


def logprob(version: int) -> float:
    return -1.0 - version


class Engine:
    """Answers prompts of steps that are released; holds others after some tokens, until they are cut off."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = load_tokenizer(directory)
        self.said = self.tokenizer.encode("7", add_special_tokens=False)[:1]
        self.version, self.released, self.inside, self.cuts, self.held = 0, 0, 0, 0, 0
        self.changed = asyncio.Condition()

    async def serve(self) -> str:
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self.runner.cleanup()

    async def release(self, step: int) -> None:
        async with self.changed:
            self.released = step
            self.changed.notify_all()

    async def cut(self) -> None:
        async with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.inside += 1
        try:
            return web.json_response(await self._answer(body["input_ids"], body["sampling_params"]["max_new_tokens"]))
        finally:
            self.inside -= 1

    async def _answer(self, tokens: list[int], most: int) -> dict[str, object]:
        found = re.search(r"row (\d+)", self.tokenizer.decode(tokens))
        assert found is not None
        step, before, reason = int(found[1]) // PROMPTS, self.cuts, "length"
        if step > self.released and most > HELD_AFTER:
            self.held += 1
            try:
                async with self.changed:
                    await self.changed.wait_for(lambda: step <= self.released or self.cuts > before)
            finally:
                self.held -= 1
            if self.cuts > before:
                most, reason = HELD_AFTER, "abort"
        said = [[logprob(self.version), token, None] for token in self.said * most]
        facts = {"output_token_logprobs": said, "weight_version": f"{self.version}@engine-0"}
        return {"text": "7" * most, "meta_info": {**facts, "finish_reason": {"type": reason}}}


class Weights:
    """Publishes by setting the engine's version."""

    def __init__(self, engine: Engine, background: Background) -> None:
        self.engine, self.background, self.pool = engine, background, self

    def publish(self, version: int) -> Publication:
        assert self.engine.inside == 0, "weights change under a request"
        self.engine.version = version
        return Publication(version, 0.5, ("engine-0",), {})

    def serving_urls(self) -> tuple[str, ...]:
        return ("http://engine-0",)


class Scene:
    """A run without a learner."""

    def __init__(self, place: Path, background: Background) -> None:
        model = tiny_tokenizer(place)
        self.background, self.losses = background, Losses()
        self.session = background.run(self._session(), 60)
        self.engine = Engine(model)
        settings = Settings(str(model), 1024, 200, 8, 600.0, 60.0, 60.0, carries=True)
        self.process = GatewayProcess(settings, place / "gateway.log", self.session, "")
        self.gateways = Gateways((self.process,))
        background.run(self.gateways.start(), 120)
        self.kept = background.submit(self.gateways.keep())
        self.workers = AgentWorkers(Agent(function="ahead_agent:run", processes=1), place / "agents.log")
        generator = AgentGenerator(
            name=self.workers.name,
            runs=self.workers,
            sessions=self.gateways,
            router=background.run(self.engine.serve(), 60),
            counting=Counting(Branches.ALL, drop_outgrown=False, judged=False, across_versions=True),
            concurrency=64,
            outage=Outage("the agent", self.losses, has_worked=True),
            losses=self.losses,
        )
        self.gated = GatedWeights(
            weights=Weights(self.engine, background),  # type: ignore[arg-type]
            gate=self.gateways,
            due=Updates(AHEAD.update_interval, Cadence(STEPS, 2, 100), evaluates=True).due,
            cut=self.engine.cut,
        )
        self.journal = Journal(place / "journal")
        rows = [Prompt(str(row), f"row {row} ", "", (), "", {}) for row in range(STEPS * PROMPTS)]
        lead = Lead(STEPS, AHEAD.max_staleness, AHEAD.update_interval)
        self.rollouts = AsyncRollouts(
            scheduler=PromptScheduler(PromptStream(Held(rows), seed=0, shuffle=False), self.journal, lead, PROMPTS),
            sampler=Sampler(generator, 1e9, lambda: self.engine.version, lambda: None, lambda: None),
            sampling=Sampling(max_new_tokens=200),
            prompts_per_step=PROMPTS,
            samples_per_prompt=SAMPLES,
            max_staleness=AHEAD.max_staleness,
            background=background,
            waiting=self.gated.rescue,
        )

    @staticmethod
    async def _session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    def step(self, number: int) -> list[Sample]:
        """Take a step of a run: its samples, training, publication."""
        self.background.run(self.engine.release(number), 60)
        groups = self.rollouts.collect(number)
        self.rollouts.consumed(number)
        return [sample for group in groups for sample in group.samples_G]

    def all_held(self, begun: int) -> None:
        """Return when all trajectories of the steps that have begun after the last one wait at the engine."""
        until(lambda: self.engine.held == begun * PROMPTS * SAMPLES)

    def close(self) -> None:
        self.rollouts.close()
        self.kept.cancel()
        self.background.run(self.workers.close(), 60)
        self.background.run(self.gateways.stop(), 60)
        self.background.run(self.engine.stop(), 60)
        self.background.run(self.session.close(), 60)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    (tmp_path / "ahead_agent.py").write_text(AGENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    with Background() as background:
        made = Scene(tmp_path, background)
        yield made
        made.close()


def of_its_version(sample: Sample) -> bool:
    """Whether each token that the model made has the log-probability of the weights that it is said to be of."""
    runs = sample.carried or ((sample.version, len(sample.tokens_T)),)
    versions = [version for version, tokens in runs for _ in range(tokens)]
    own = [version for version, is_own in zip(versions, sample.own_T, strict=True) if is_own]
    return [logprob(version) for version in own] == list(sample.own_logprobs)


def test_answers_go_on_with_new_weights_and_each_token_keeps_its_own_also_where_the_gateway_is_killed(
    scene: Scene,
) -> None:
    scene.gated.publish(0)
    made = [scene.step(0)]
    scene.all_held(begun=2)
    scene.gated.publish(1)
    made.append(scene.step(1))
    scene.all_held(begun=2)
    assert scene.process.pid is not None
    os.kill(scene.process.pid, signal.SIGKILL)
    until(lambda: scene.engine.held == 0)
    scene.all_held(begun=2)
    scene.gated.publish(2)
    made.append(scene.step(2))
    scene.all_held(begun=1)
    scene.gated.publish(3)
    made.append(scene.step(3))

    assert [len(samples) for samples in made] == [PROMPTS * SAMPLES] * STEPS
    assert all(of_its_version(sample) for samples in made for sample in samples)
    assert {sample.carried for sample in made[0]} == {()}
    assert {sample.versions for sample in made[1]} == {((0, 2), (1, 22))}, "two of three tokens were kept"
    assert all(step - 2 <= sample.oldest for step, samples in enumerate(made) for sample in samples)
    assert {sample.versions for sample in made[3]} == {((1, 2), (2, 2), (3, 20))}, "of the session that was read back"
    lost = scene.losses.lost()
    assert (lost.agent_restarts, lost.lost_samples) == (0, 0)
    assert lost.agent_cut_offs == 2 * PROMPTS * SAMPLES, "their clients have asked again"
    assert [(record.event, record.step) for record in scene.journal.records] == [
        (record["event"], record["step"])
        for record in expected_journal(STEPS, PROMPTS, STEPS + 1, [str(row) for row in range(99)], ahead=2)[:-1]
    ]
