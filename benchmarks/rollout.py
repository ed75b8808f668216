"""Rollouts through router, sampler and journal-side bookkeeping, against the same requests straight to the engine.

One engine serves both, in turns, with an empty prefix cache each time. The plain side is what a careful person writes:
all requests at once over one session, and the JSON of the answers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp

from rljob_api.sections import RLJob
from rljob_trainer.assembly.settings import router_settings
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.client import EngineClient, open_session
from rljob_trainer.engines.command import engine_command
from rljob_trainer.engines.generation import RouterGenerator, token_request
from rljob_trainer.engines.router import Router
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.samples import Group, Prompt

HOST = "127.0.0.1"
DEADLINE_S = 600.0


@dataclass(frozen=True)
class Figures:
    """Medians over the rounds."""

    ours: float
    """[response tokens/s]"""
    plain: float
    """[response tokens/s]"""
    groups: tuple[Group, ...]
    """the last rollout, where realistic samples are needed"""
    rounds: dict[str, list[float]]
    """both rates of every round that counts"""


def compare(job: RLJob, model: Path, prompts: Sequence[Prompt], rounds: int, threads: int, directory: Path) -> Figures:
    """Return both rates for one step's rollout, measured in turns after one warm-up each."""
    server = EngineServer("engine-0", directory / "engine.log", HOST)
    served = server.start(engine_command(job.spec, model, threads), DEADLINE_S)
    try:
        return asyncio.run(_compare(job, served.url, prompts, rounds, directory))
    finally:
        server.stop()


async def _compare(job: RLJob, url: str, prompts: Sequence[Prompt], rounds: int, directory: Path) -> Figures:
    async with open_session() as session:
        router = Router(router_settings(job.spec), directory / "router.log", session, HOST)
        await router.start()
        try:
            engine = EngineClient(session, "engine-0", url)
            await engine.label_weights(0, DEADLINE_S)
            await router.add(url)
            return await _measure(job, router, engine, prompts, rounds)
        finally:
            await router.stop()


async def _measure(job: RLJob, router: Router, engine: EngineClient, prompts: Sequence[Prompt], rounds: int) -> Figures:
    assert router.client is not None
    sampling, samples = job.spec.rollout.sampling, job.spec.rollout.samples_per_prompt
    generator = RouterGenerator(router.client, DEADLINE_S)
    sampler = Sampler(generator, DEADLINE_S, lambda: 0, answered=lambda: None, check=lambda: None)
    groups: tuple[Group, ...] = ()

    async def ours() -> int:
        nonlocal groups
        groups = await sampler.groups(prompts, sampling, samples)
        return sum(len(sample.tokens_T) for group in groups for sample in group.samples_G)

    async def plain() -> int:
        bodies = [token_request(prompt, sampling, samples, greedy=False).body() for prompt in prompts]
        answers = await asyncio.gather(*(post(engine.session, f"{engine.url}/generate", body) for body in bodies))
        return sum(len(each["meta_info"]["output_token_logprobs"]) for answer in answers for each in answer)

    rates: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(rounds + 1):
        for name, work in (("ours", ours), ("plain", plain)):
            await post(engine.session, f"{engine.url}/flush_cache", {})
            rates[name].append(await rate(work))
    counted = {name: values[1:] for name, values in rates.items()}
    return Figures(median(counted["ours"]), median(counted["plain"]), groups, counted)


async def rate(work: Callable[[], Awaitable[int]]) -> float:
    """Return tokens per second."""
    began = time.perf_counter()
    return await work() / (time.perf_counter() - began)


async def post(session: aiohttp.ClientSession, url: str, body: object) -> list[dict[str, dict[str, list[object]]]]:
    """Return the JSON of an answer."""
    async with session.post(url, json=body, timeout=aiohttp.ClientTimeout(total=DEADLINE_S)) as answer:
        answer.raise_for_status()
        return await answer.json() if answer.content_type == "application/json" else []
