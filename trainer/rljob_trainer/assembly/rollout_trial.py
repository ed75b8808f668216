"""Makes samples for the first rows of a manifest's data, and judges them: what `rljob rollout test` shows.

rows ─► prompts ─► engine, or a function or agent and the engine ─► samples ─► every part of the reward

One engine with the weights of `model.checkpoint`, started for it, or any that runs already.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rljob_api.sections import Agent, Sampling, Spec
from rljob_trainer.agents.factory import agents, runs
from rljob_trainer.assembly.reward_trial import Verdict, trial
from rljob_trainer.conversations import factory as conversations
from rljob_trainer.conversations.factory import Apart
from rljob_trainer.data.render import Renderer
from rljob_trainer.data.sources import questions
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.engines.actor.server import EngineServer
from rljob_trainer.engines.client import RouterClient
from rljob_trainer.engines.command import engine_command
from rljob_trainer.engines.generation import RouterGenerator
from rljob_trainer.engines.key import new_key
from rljob_trainer.generator import Generator
from rljob_trainer.reporting.losses import Losses
from rljob_trainer.rewards.factory import Rewards
from rljob_trainer.rewards.truncated import masked_group
from rljob_trainer.rundir.cores import make_place
from rljob_trainer.samples import Group, Prompt, Sample

HOST = "127.0.0.1"
PATIENCE_S = 60.0
"""longest time without an answer of the engine, beside that of one request [s]"""


@dataclass(frozen=True, slots=True)
class Door:
    """Where an engine or router is asked."""

    url: str
    key: str = field(repr=False)
    """that it demands; empty: none"""


@dataclass(frozen=True, slots=True)
class Tried:
    """A sample with what the reward says of it."""

    prompt: Prompt
    sample: Sample
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RolloutTrial:
    """What became of all rows."""

    tried: tuple[Tried, ...]
    run_would_end: bool
    """because of a reward"""


def prompts(spec: Spec, model: Path, rows: int) -> tuple[Prompt, ...]:
    """Return the first rows to train on as the engine gets them. Raises DataError."""
    renderer = Renderer(spec.data, load_tokenizer(model), conversations.schemas(spec))
    return tuple(renderer.prompt(str(number), row) for number, row in enumerate(questions(spec.data).train[:rows]))


@contextmanager
def engine(spec: Spec, model: Path, log: Path, python_path: str) -> Iterator[Door]:
    """Run one engine meanwhile, with its own key. Raises EngineStartError."""
    server = EngineServer("engine-0", log, HOST)
    directory = log.parent.resolve()
    if spec.debug.cuda_launch_blocking:
        make_place(directory)
    key = new_key()
    command = replace(engine_command(spec, model, len(os.sched_getaffinity(0)), python_path, directory), key=key)
    try:
        yield Door(server.start(command, spec.recovery.start_timeout_seconds).url, key)
    finally:
        server.stop()


def groups(
    spec: Spec, model: Path, door: Door, asked: Sequence[Prompt], samples: int, greedy: bool, log: Path
) -> tuple[Group, ...]:
    """Return samples of each prompt, by the engine or router behind `door` and in the manifest's way.

    What tools print goes to `log`.
    Raises GenerateError, EngineError, GenerationFailedError, RolloutTimeoutError.
    """
    with ExitStack() as stack:
        function = conversations.function(spec, log, stack, environ={})
        apart = stack.enter_context(conversations.own_loop())
        client = RouterClient(apart.session, door.url, door.key)
        generator: Generator = RouterGenerator(client, spec.rollout.longest_request_s)
        if function is not None:
            generator = conversations.function_generator(
                function, spec, model, client, PATIENCE_S, alive=lambda: None, stack=stack
            )
        if spec.rollout.agent is not None:
            generator = _agents(spec, spec.rollout.agent, model, client, apart, log.parent, stack)
        made = apart.loop.run(_groups(generator, asked, spec.rollout.sampling, samples, greedy), timeout_s=None)
        return tuple(map(masked_group, made)) if spec.algorithm.mask_truncated else made


def _agents(
    spec: Spec, agent: Agent, model: Path, client: RouterClient, apart: Apart, logs: Path, stack: ExitStack
) -> Generator:
    """Start what the agent needs; `stack` ends it."""
    runs(agent, logs).check(lambda: None)
    made = agents(spec, agent, model, apart.session, client.key, PATIENCE_S, logs)
    stack.callback(lambda: apart.loop.run(made.stop(), timeout_s=PATIENCE_S))
    apart.loop.run(made.start(), timeout_s=None)
    return made.generator(client, None, Losses(), lambda: None)


def judged(rewards: Rewards, made: Sequence[Group]) -> RolloutTrial:
    """Return the samples with what the reward says. Raises RewardError where it cannot be computed at all."""
    texts = [[sample.text for sample in group.samples_G if sample.reward is None] for group in made]
    done = trial(rewards, [group.prompt for group in made], texts)
    verdicts = iter(done.verdicts)
    tried = [
        Tried(group.prompt, sample, next(verdicts) if sample.reward is None else given(row, group.prompt, sample))
        for row, group in enumerate(made)
        for sample in group.samples_G
    ]
    return RolloutTrial(tuple(tried), done.run_would_end)


def given(row: int, prompt: Prompt, sample: Sample) -> Verdict:
    """Return the verdict of an agent on its own sample."""
    return Verdict(row, prompt.question, prompt.label, sample.text, {}, {}, sample.reward)


async def _groups(
    generator: Generator, asked: Sequence[Prompt], sampling: Sampling, samples: int, greedy: bool
) -> tuple[Group, ...]:
    made = await asyncio.gather(*(generator.generate(prompt, sampling, samples, greedy) for prompt in asked))
    return tuple(Group(prompt, samples_G) for prompt, samples_G in zip(asked, made, strict=True))
