"""Rollouts: prompts to groups of samples, through the router, whatever happens to single engines.

A request that fails is sent again: the router picks another engine. A prompt is journaled before its first request and
answered exactly once, so that nothing is lost or repeated. Samples of a weights version that may not be trained on are
refused: they can only come from an engine that should not have been asked.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_api.sections import Sampling
from rljob_trainer.background import Background
from rljob_trainer.data.issues import Issues
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
    """returns the current weights version"""
    answered: Callable[[], None]
    """told of every answered prompt: a sign of life in a phase that may be long"""
    check: Callable[[], None]
    """raises what makes all waiting vain: the learner, without which no restarted engine gets weights, is lost"""
    retries: int = 0
    _heard: float = 0.0
    """when any prompt was answered last, or asked [s]"""

    async def groups(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        num_samples: int,
        greedy: bool = False,
        oldest: int | None = None,
    ) -> tuple[Group, ...]:
        """Return one group for each prompt, in the order of the prompts.

        All tokens are of the current weights version; with `oldest`, of that or any later one.
        Raises RolloutTimeoutError when for `timeout_s` no prompt at all is answered: many take as long as they take;
        and what `check` raises.
        """
        self._heard = time.monotonic()
        asked = [
            asyncio.ensure_future(self._until_answered(each, sampling, num_samples, greedy, oldest)) for each in prompts
        ]
        try:
            await self._all_answered(prompts, asked)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return tuple(Group(prompt, task.result()) for prompt, task in zip(prompts, asked, strict=True))

    async def _all_answered(self, prompts: Sequence[Prompt], asked: "Sequence[asyncio.Future[Samples]]") -> None:
        pending = set(asked)
        while pending:
            done, pending = await asyncio.wait(pending, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            if not done and time.monotonic() - self._heard > self.timeout_s:
                waiting = [prompt.uid for prompt, task in zip(prompts, asked, strict=True) if task in pending]
                raise RolloutTimeoutError(
                    f"no prompt was answered within {self.timeout_s:g} s; {len(waiting)} wait, first {waiting[0]}"
                )
            for task in done:
                task.result()  # raises what asking again would not help against

    async def _until_answered(
        self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool, oldest: int | None
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
                if all(_is_of(sample, version if oldest is None else oldest, version) for sample in samples):
                    self._heard = time.monotonic()
                    self.answered()
                    return samples
                self.retries += 1
                log.warning("action=retry prompt=%s reason=WrongVersion wanted=%s", prompt.uid, version)
            await asyncio.sleep(RETRY_PAUSE_S)


def _is_of(sample: Sample, oldest: int | None, newest: int | None) -> bool:
    return oldest is not None and newest is not None and oldest <= sample.oldest and sample.version <= newest


@dataclass
class SyncRollouts:
    """Generates now, with the current weights, and waits for all."""

    issues: Issues
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
        prompts = self.issues.take(step, num_prompts)
        work = self.sampler.groups(prompts, self.sampling, self.samples_per_prompt)
        return self.background.run(work, timeout_s=None)

    def consumed(self, step: int) -> None:
        """Journal that the learner has taken its step on the prompts of `step`."""
        self.issues.journal.consumed(step)
