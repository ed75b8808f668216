"""Rollouts: prompts to groups of samples, through the router, whatever happens to single engines.

A request that fails is sent again: the router picks another engine. A prompt is journaled before its first request and
answered exactly once, so that nothing is lost or repeated. Samples of another weights version than the current one
are refused: they can only come from an engine that should not have been asked.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_api.sections import Sampling
from rljob_trainer.background import Background
from rljob_trainer.data.journal import Journal
from rljob_trainer.data.prompts import PromptStream
from rljob_trainer.samples import Group, Prompt, Sample

log = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.2
LOOK_S = 0.2

Samples = tuple[Sample, ...]


class Generator(Protocol):
    """Whatever continues prompts: the router in front of the engines."""

    async def generate(self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool) -> tuple[Sample, ...]:
        """Return `num_samples` continuations; raise GenerationFailedError when the request must be sent again."""


class GenerationFailedError(RuntimeError):
    """A request was not answered; another engine may answer it."""


class RolloutTimeoutError(RuntimeError):
    """For the whole deadline no engine has answered any prompt."""


@dataclass
class Sampler:
    """Asks for samples until they are there. Counts what had to be asked again."""

    generator: Generator
    timeout_s: float
    """longest time without an answer to any prompt [s]"""
    version: Callable[[], int | None]
    """returns the current weights version; samples of others are refused"""
    answered: Callable[[], None]
    """told of every answered prompt: a sign of life in a phase that may be long"""
    check: Callable[[], None]
    """raises what makes all waiting vain: the learner, without which no restarted engine gets weights, is lost"""
    retries: int = 0

    async def groups(
        self, prompts: Sequence[Prompt], sampling: Sampling, num_samples: int, greedy: bool = False
    ) -> tuple[Group, ...]:
        """Return one group for each prompt, in the order of the prompts.

        Raises RolloutTimeoutError when for `timeout_s` no prompt at all is answered: many take as long as they take;
        and what `check` raises.
        """
        asked = [asyncio.ensure_future(self._until_answered(each, sampling, num_samples, greedy)) for each in prompts]
        try:
            await self._all_answered(prompts, asked)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return tuple(Group(prompt, task.result()) for prompt, task in zip(prompts, asked, strict=True))

    async def _all_answered(self, prompts: Sequence[Prompt], asked: "Sequence[asyncio.Future[Samples]]") -> None:
        pending, heard = set(asked), time.monotonic()
        while pending:
            done, pending = await asyncio.wait(pending, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            if done:
                heard = time.monotonic()
            elif time.monotonic() - heard > self.timeout_s:
                waiting = [prompt.uid for prompt, task in zip(prompts, asked, strict=True) if task in pending]
                raise RolloutTimeoutError(
                    f"no prompt was answered within {self.timeout_s:g} s; {len(waiting)} wait, first {waiting[0]}"
                )
            for task in done:
                task.result()  # raises what asking again would not help against

    async def _until_answered(
        self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool
    ) -> tuple[Sample, ...]:
        told = ""
        while True:
            try:
                samples = await self.generator.generate(prompt, sampling, num_samples, greedy)
            except GenerationFailedError as error:
                self.retries += 1
                if told != (told := str(error)):  # without engines the same is heard for minutes
                    log.info("action=retry prompt=%s reason=%s", prompt.uid, told)
            else:
                version = self.version()
                if all(sample.version == version for sample in samples):
                    self.answered()
                    return samples
                self.retries += 1
                log.warning("action=retry prompt=%s reason=WrongVersion wanted=%s", prompt.uid, version)
            await asyncio.sleep(RETRY_PAUSE_S)


@dataclass
class SyncRollouts:
    """Generates now, with the current weights, and waits for all."""

    stream: PromptStream
    journal: Journal
    sampler: Sampler
    sampling: Sampling
    prompts_per_step: int
    samples_per_prompt: int
    background: Background

    def take(self, step: int) -> tuple[Group, ...]:
        """Return the groups of `step`."""
        return self.generate(step, self.prompts_per_step)

    def generate(self, step: int, num_prompts: int) -> tuple[Group, ...]:
        """Return the groups of the next prompts, which are journaled as issued for `step`."""
        prompts = self.stream.take(num_prompts)
        self.journal.issued(step, [prompt.uid for prompt in prompts])
        work = self.sampler.groups(prompts, self.sampling, self.samples_per_prompt)
        return self.background.run(work, timeout_s=None)

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.journal.consumed(step)
