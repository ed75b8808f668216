"""Samples made by engines and judged by rewards: with training, or alone (`spec.debug.rolloutOnly`)."""

import logging
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rljob_api import control
from rljob_api.control import EngineStatus
from rljob_api.sections import Async
from rljob_trainer.agents.factory import runs
from rljob_trainer.assembly.agents import StartedAgents, start_agents
from rljob_trainer.assembly.fleet import Fleet, start_fleet
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.settings import patience_s, publication_s, updates
from rljob_trainer.assembly.stages import Learning, Material
from rljob_trainer.conversations import factory as conversations
from rljob_trainer.conversations.function import Function
from rljob_trainer.data.dataset import Dataset
from rljob_trainer.data.prompt_scheduler import PromptScheduler
from rljob_trainer.data.tokenizer import load_tokenizer
from rljob_trainer.engines.carrying import Carrying, Gated
from rljob_trainer.engines.client import Generates
from rljob_trainer.engines.gate import Gate
from rljob_trainer.engines.generation import RouterGenerator
from rljob_trainer.engines.placement import Slots
from rljob_trainer.generator import Generator
from rljob_trainer.learners.group import LearnerGroup
from rljob_trainer.parts import EarlyRewards, Evaluation, Sampled, Weights
from rljob_trainer.rewards.factory import RewardContext, rewards
from rljob_trainer.rewards.given import GivenRewards
from rljob_trainer.rollouts.asynchronous import AsyncRollouts
from rljob_trainer.rollouts.evaluation import HeldOut, NoHeldOut, with_sets
from rljob_trainer.rollouts.sampler import Sampler
from rljob_trainer.rollouts.synchronous import SyncRollouts
from rljob_trainer.sync.gated_weights import Door, GatedWeights
from rljob_trainer.sync.publisher import Publisher
from rljob_trainer.sync.weights import EngineWeights

log = logging.getLogger(__name__)

START_MARGIN_S = 60.0
"""beside the time that the manifest gives engines to start: for the router [s]"""


@dataclass(frozen=True, slots=True)
class EngineSource:
    """Rewards and the generate function, loaded; no engine runs."""

    foundation: Foundation
    rewards: EarlyRewards
    function: Function | None
    """what makes samples in several steps; None: the model answers once"""

    def start(self, material: Material, slots: Slots) -> "EngineSampling":
        """Start router and engines; return without waiting for them."""
        fleet = start_fleet(self.foundation, material, slots)
        agents = start_agents(self.foundation, material, fleet.key)
        return EngineSampling(self.foundation, material, self.rewards, self.function, fleet, agents)


def engine_source(foundation: Foundation, model: Path, data: Dataset) -> EngineSource:
    """Load rewards and the function that makes samples. Raises RewardError and GenerateError."""
    spec, stack = foundation.spec, foundation.stack
    context = RewardContext(
        log=foundation.directory / control.REWARD_LOG,
        environ=foundation.environ,
        with_metadata=spec.data.metadata_key is not None,
        alive=foundation.status_store.beat,
        losses=foundation.losses,
        outage=foundation.outage,
    )
    loaded = rewards(spec.reward, context, stack)
    scoring: EarlyRewards = loaded if spec.rollout.agent is None else GivenRewards(loaded)
    log_file, beat = foundation.directory / "logs" / "tools.log", foundation.status_store.beat
    function = conversations.function(spec, log_file, stack, foundation.environ, foundation.losses, beat)
    if spec.rollout.agent is not None:
        runs(spec.rollout.agent, foundation.directory / "logs").check(beat)
    return EngineSource(foundation, scoring, function)


@dataclass(frozen=True, slots=True)
class EngineSampling:
    """Engines that start or run, and what the loop needs to sample from them."""

    foundation: Foundation
    material: Material
    rewards: EarlyRewards
    function: Function | None
    fleet: Fleet
    agents: StartedAgents | None

    def wait_until_ready(self) -> None:
        """Return when router and engines have started. Raises EngineStartError."""
        longest_s = self.foundation.spec.recovery.start_timeout_seconds + START_MARGIN_S
        self.fleet.started.result(longest_s)
        if self.agents is not None:
            self.agents.started.result(longest_s)

    def engines(self) -> Sequence[EngineStatus]:
        """Return the state of each engine."""
        return self.fleet.pool.snapshot()

    def watchers(self) -> Sequence[Awaitable[None]]:
        """Return what restarts the router and the gateways when they end."""
        gateways = () if self.agents is None else (self.agents.agents.gateways.keep(),)
        return (self.fleet.router.keep(self.fleet.pool.serving_urls), *gateways)

    def of(self, foundation: Foundation, material: Material) -> "EngineSampling":
        """Return it with what lasts as long as one learner; engines, rewards and agents last longer."""
        return replace(self, foundation=foundation, material=material)

    def learner_is_gone(self) -> None:
        """Have engines leave their group with it, and get no weights until there is another learner."""
        publisher, self.fleet.catch_up.publisher = self.fleet.catch_up.publisher, None
        if publisher is None:
            return
        try:
            self.foundation.background.run(publisher.forget(self.fleet.pool.answering()), publisher.timeout_s)
        except TimeoutError:  # an engine that does not let go is noticed at the next publication
            log.warning("action=forget_learner outcome=late")

    def sampled(self, scheduler: PromptScheduler, learning: Learning) -> Sampled:
        """Publish the first weights; return rollouts, rewards, weights and evaluation."""
        deadline_s = publication_s(self.foundation.spec, self.material.model)
        publisher = Publisher(learning.transport(self.fleet.hosts), deadline_s)
        self.fleet.catch_up.publisher = publisher
        if self.fleet.sharing is not None:
            self.fleet.sharing.learner = learning.group
        weights = EngineWeights(self.fleet.pool, publisher, self.foundation.background)
        ahead = self.foundation.spec.ahead
        rollouts, published = (
            (self._synchronous(scheduler, publisher, learning.group), weights)
            if ahead is None
            else self._asynchronous(ahead, scheduler, weights, learning.group)
        )
        return Sampled(
            rollouts=rollouts,
            rewards=self.rewards,
            gpu_sharing=learning.gpu_sharing(weights, self.fleet.pool),
            weights=learning.published(published, self.material.first),
            evaluation=self._evaluation(rollouts.sampler),
        )

    def _synchronous(self, scheduler: PromptScheduler, publisher: Publisher, learner: LearnerGroup) -> SyncRollouts:
        rollout = self.foundation.spec.rollout
        return SyncRollouts(
            scheduler=scheduler,
            sampler=self._sampler(self.fleet.client, publisher, learner),
            sampling=rollout.sampling,
            prompts_per_step=rollout.prompts_per_step,
            samples_per_prompt=rollout.samples_per_prompt,
            background=self.foundation.background,
        )

    def _asynchronous(
        self, ahead: Async, scheduler: PromptScheduler, weights: EngineWeights, learner: LearnerGroup
    ) -> tuple[AsyncRollouts, Weights]:
        """Return rollouts that run while the learner trains, and weights that are published behind a gate."""
        spec, rollout, gate = self.foundation.spec, self.foundation.spec.rollout, Gate()
        router: Generates = Gated(self.fleet.client, gate)
        door: Door = gate if self.agents is None else self.agents.agents.gateways
        if ahead.partial and self.agents is None:
            decode = partial(load_tokenizer(self.material.model).decode, skip_special_tokens=True)
            router = Carrying(router, decode)
        cut = self.fleet.pool.cut if ahead.partial else None
        gated = GatedWeights(weights=weights, gate=door, due=updates(spec).due, cut=cut)
        rollouts = AsyncRollouts(
            scheduler=scheduler,
            sampler=self._sampler(router, weights.publisher, learner),
            sampling=rollout.sampling,
            prompts_per_step=rollout.prompts_per_step,
            samples_per_prompt=rollout.samples_per_prompt,
            max_staleness=ahead.max_staleness,
            background=self.foundation.background,
            waiting=gated.rescue,
        )
        self.foundation.stack.callback(rollouts.close)
        return rollouts, gated

    def _sampler(self, router: Generates, publisher: Publisher, learner: LearnerGroup) -> Sampler:
        spec, beat = self.foundation.spec, self.foundation.status_store.beat
        longest_s = patience_s(spec)
        outage = self.foundation.outage
        generator: Generator = RouterGenerator(router, spec.rollout.longest_request_s)
        if self.function is not None:
            model, client = self.material.model, self.fleet.client
            generator = conversations.function_generator(
                self.function, spec, model, client, longest_s, beat, self.foundation.stack, outage(self.function.name)
            )
            longest_s = math.inf  # a prompt takes as many answers as it takes: the generator watches the engines
        if self.agents is not None:
            made, losses = self.agents.agents, self.foundation.losses
            generator = made.generator(self.fleet.client, outage(made.runs.name), losses, beat)
            longest_s = math.inf  # as above: the gateways watch the engines
        answers = outage("the answer of the engines")
        return Sampler(
            generator,
            longest_s,
            lambda: publisher.version,
            beat,
            learner.check,
            outage=answers,
            made=self.rewards.begin,
        )

    def _evaluation(self, sampler: Sampler) -> Evaluation:
        spec, data = self.foundation.spec, self.material.data
        if not data.held_out:
            return NoHeldOut()
        held_out = HeldOut(
            prompts=data.held_out,
            sampler=sampler,
            sampling=spec.rollout.sampling,
            rewards=self.rewards,
            samples_per_prompt=spec.evaluation.samples_per_prompt,
            greedy=spec.evaluation.greedy,
            background=self.foundation.background,
        )
        return with_sets(held_out, spec.data.evaluation_sets, data.evaluation_sets)
