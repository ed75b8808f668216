"""Turns prompts into groups of samples, through the router, also while single engines fail.

A failed request is retried: the router picks another engine. A prompt is journaled before its first request and
answered exactly once, so nothing is lost or repeated. Samples of a weights version that may not be trained on are
rejected and retried: only an engine that is out of service could have made them. A prompt that engines refuse again and
again is lost: its group is empty.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from rljob_api.sections import Sampling
from rljob_trainer.engines.client import EngineRefusedError
from rljob_trainer.generator import RETRY_PAUSE_S, GenerationFailedError, Generator, RolloutTimeoutError
from rljob_trainer.reporting.losses import Cause, Outage
from rljob_trainer.samples import Group, Prompt, Sample

log = logging.getLogger(__name__)

LOOK_S = 0.2

Samples = tuple[Sample, ...]


@dataclass
class Sampler:
    """Requests samples until all have arrived. Counts retries."""

    generator: Generator
    timeout_s: float
    """longest time without an answer to any prompt [s]"""
    version: Callable[[], int | None]
    """returns the current weights version"""
    answered: Callable[[], None]
    """is called at every answered prompt: a heartbeat in a phase that may be long"""
    check: Callable[[], None]
    """raises when waiting is pointless: without the learner no restarted engine gets weights"""
    clock: Callable[[], float] = time.monotonic
    outage: Outage = field(default_factory=lambda: Outage("the engines' answer"))
    """decides which prompts are lost because engines refuse them"""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    """before a prompt that was refused is sent again"""
    made: Callable[[Group], None] = lambda group: None
    """is called with each group as soon as it is there, while others are sampled; it returns at once"""
    retries: int = 0
    _last_answer_s: float = 0.0
    """when any prompt was answered last, or asked [s]"""

    async def groups(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        num_samples: int,
        greedy: bool = False,
        oldest: int | None = None,
    ) -> tuple[Group, ...]:
        """Return one group for each prompt, in the order of the prompts, less the samples that are lost.

        All tokens are of the current weights version; with `oldest`, of that or any later one.
        Raises RolloutTimeoutError when no prompt at all is answered for `timeout_s`, however long all of them take, and
        what `check` raises.
        """
        self._last_answer_s = self.clock()
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
            if not done and self.clock() - self._last_answer_s > self.timeout_s:
                waiting = [prompt.uid for prompt, task in zip(prompts, asked, strict=True) if task in pending]
                raise RolloutTimeoutError(
                    f"no prompt was answered within {self.timeout_s:g} s; {len(waiting)} wait, first {waiting[0]}"
                )
            for task in done:
                task.result()  # raises errors that a retry would not cure

    async def _until_answered(
        self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool, oldest: int | None
    ) -> tuple[Sample, ...]:
        logged, refused = "", self.outage.trouble()
        while True:
            try:
                samples = await self.generator.generate(prompt, sampling, num_samples, greedy)
            except GenerationFailedError as error:
                self.retries += 1
                if logged != (logged := str(error)):  # without engines the same error repeats for minutes
                    log.info("action=retry prompt=%s reason=%s", prompt.uid, logged)
            except EngineRefusedError as error:
                if (longer_s := self.outage.pause_s(refused, str(error))) is None:
                    log.warning("action=lose_prompt prompt=%s samples=%d reason=%s", prompt.uid, num_samples, error)
                    self.outage.losses.note(Cause.REFUSED, num_samples, error)
                    return ()
                log.info("action=try_again prompt=%s seconds=%.1f reason=%s", prompt.uid, longer_s, error)
                await self.pause(longer_s)
                continue
            else:
                version = self.version()
                if all(_is_of(sample, version if oldest is None else oldest, version) for sample in samples):
                    self._last_answer_s = self.clock()
                    self.answered()
                    if samples:
                        self.outage.worked()
                    self.made(Group(prompt, samples))
                    return samples
                self.retries += 1
                log.warning("action=retry prompt=%s reason=WrongVersion wanted=%s", prompt.uid, version)
            await asyncio.sleep(RETRY_PAUSE_S)


def _is_of(sample: Sample, oldest: int | None, newest: int | None) -> bool:
    return oldest is not None and newest is not None and oldest <= sample.oldest and sample.version <= newest
