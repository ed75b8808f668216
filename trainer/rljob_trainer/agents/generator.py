"""The generator for agents: each sample is the session of one call of the agent's function, or of its program.

A trajectory that fails is started again, some times; then its sample is lost, and the others of its group stay. One
that fails after the end of its gateway is started again without being counted as a failure; also one whose weights have
changed, if rollouts are not ahead of training.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rljob_api.sections import Sampling
from rljob_trainer.agents.outcome import Outcome
from rljob_trainer.agents.traces import Traces
from rljob_trainer.agents.trajectory import Counting, trajectory
from rljob_trainer.conversations.errors import GenerateError, TooSlowError
from rljob_trainer.gateway.client import GatewayError, OpenSession
from rljob_trainer.gateway.record import Opening, Record
from rljob_trainer.generator import RETRY_PAUSE_S, GenerationFailedError, RolloutTimeoutError
from rljob_trainer.reporting.losses import Cause, Losses, Outage
from rljob_trainer.samples import Prompt, Sample

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""between two signs of life [s]"""


class Calls(Protocol):
    """Calls the agent."""

    async def call(self, arguments: tuple[Any, ...]) -> Outcome:
        """Return how it ended. Raises AwayError."""


class Sessions(Protocol):
    """The gateways: `gateway.client.Gateways`, or a fake of tests. Raises GatewayError."""

    async def open_session(self, opening: Opening) -> OpenSession: ...

    async def close_session(self, session: OpenSession) -> Record: ...


@dataclass
class AgentGenerator:
    """Makes each sample with an agent."""

    name: str
    """for messages: the field that names the agent, and its value"""
    runs: Calls
    sessions: Sessions
    router: str
    """URL"""
    counting: Counting
    concurrency: int
    """trajectories at once"""
    outage: Outage | None
    """decides which trajectories are lost; None: an error of one is an error of all"""
    losses: Losses = field(default_factory=Losses)
    alive: Callable[[], None] = lambda: None
    """called again and again while an agent runs, whose time is limited"""
    away_s: float = 600.0
    """longest time without a gateway for one trajectory [s]"""
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    traces: Traces | None = None
    unix_time: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._room = asyncio.Semaphore(self.concurrency)

    async def generate(self, prompt: Prompt, sampling: Sampling, num_samples: int, greedy: bool) -> tuple[Sample, ...]:
        """Return `num_samples` samples, less those that are lost.

        Raises RolloutTimeoutError where no engine answers, GatewayError where no gateway does, AwayError where the
        function fails for too long. If nothing may be lost: GenerateError where the agent fails.
        """
        asked = [asyncio.ensure_future(self._sample(prompt, sampling, greedy)) for _ in range(num_samples)]
        try:
            return tuple(sample for sample in await asyncio.gather(*asked) if sample is not None)
        finally:
            for task in asked:
                task.cancel()

    async def _sample(self, prompt: Prompt, sampling: Sampling, greedy: bool) -> Sample | None:
        """Return a sample; None: it is lost."""
        failing, gone = self.outage.trouble() if self.outage else None, 0
        while True:
            try:
                async with self._room:
                    sample = await self._made(prompt, opening(self.router, sampling, greedy))
            except RolloutTimeoutError:
                raise
            except (GenerationFailedError, GatewayError) as error:
                gone += isinstance(error, GatewayError)
                if gone * RETRY_PAUSE_S > self.away_s:
                    raise
                log.info("action=begin_again prompt=%s reason=%s", prompt.uid, error)
                self.losses.restarted()
                await self.pause(RETRY_PAUSE_S)
            except GenerateError as error:
                named = type(error)(f"{self.name}: prompt {prompt.uid}: {error}")
                if self.outage is None or failing is None:
                    raise named from error
                if (pause_s := self.outage.pause_s(failing, str(named))) is None:
                    log.warning("action=lose_sample prompt=%s reason=%s", prompt.uid, error)
                    self.outage.losses.note(cause(error), 1, named)
                    return None
                log.info("action=try_again prompt=%s seconds=%.1f reason=%s", prompt.uid, pause_s, error)
                self.losses.restarted()
                await self.pause(pause_s)
            else:
                if self.outage is not None:
                    self.outage.worked()
                return sample

    async def _made(self, prompt: Prompt, begun: Opening) -> Sample:
        began = self.unix_time()
        try:
            sample = await self._played(prompt, begun)
        except Exception as error:
            if self.traces is not None:
                self.traces.failed(prompt, began, self.unix_time(), error)
            raise
        if self.traces is not None:
            self.traces.made(prompt, sample, began, self.unix_time())
        return sample

    async def _played(self, prompt: Prompt, begun: Opening) -> Sample:
        session = await self.sessions.open_session(begun)
        running = asyncio.ensure_future(self.runs.call((task(prompt), session.base_url, session.key)))
        try:
            while not (await asyncio.wait({running}, timeout=LOOK_S))[0]:
                self.alive()
        finally:
            running.cancel()
            record = await self.sessions.close_session(session)
            self.losses.cut_off(record.cut_off)
        return trajectory(running.result(), record, self.counting)


def opening(router: str, sampling: Sampling, greedy: bool) -> Opening:
    """Return how the model answers in a session."""
    return Opening(
        router=router,
        temperature=0.0 if greedy else sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        top_k=-1 if greedy else sampling.top_k,
        stop=sampling.stop,
        stop_token_ids=sampling.stop_token_ids,
    )


def task(prompt: Prompt) -> dict[str, Any]:
    """Return what an agent gets of its row."""
    return {"question": prompt.question, "label": prompt.label, "metadata": dict(prompt.metadata)}


def cause(error: GenerateError) -> Cause:
    """Return what a trajectory was lost to."""
    return Cause.AGENT_TIMEOUT if isinstance(error, TooSlowError) else Cause.AGENT
