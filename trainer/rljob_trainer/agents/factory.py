"""What the agents of a run need: gateways, worker processes, and the generator over both."""

import asyncio
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aiohttp import ClientSession

from rljob_api.sections import Agent, Replay, Spec
from rljob_api.sizing.token_limits import context_room
from rljob_trainer.agents.commands import Commands
from rljob_trainer.agents.generator import AgentGenerator, Calls
from rljob_trainer.agents.traces import Traces, traces
from rljob_trainer.agents.trajectory import Counting
from rljob_trainer.agents.workers import AgentWorkers
from rljob_trainer.data.tokenizer import load_config
from rljob_trainer.engines.client import RouterClient
from rljob_trainer.gateway.client import GatewayProcess, Gateways, num_gateways
from rljob_trainer.gateway.record import Settings
from rljob_trainer.processes.pod_limits import cores
from rljob_trainer.reporting.losses import Losses, Outage

FORGET_S = 600.0
"""from the end of an agent's time until a session that is not closed is forgotten [s]"""


class Runs(Calls, Protocol):
    """How agents are run: `workers.AgentWorkers` or `commands.Commands`."""

    name: str
    """the field that names the agent, and its value"""

    def check(self, alive: Callable[[], None]) -> None:
        """Raise GenerateError if the agent cannot be run."""

    async def close(self) -> None:
        """End all that runs."""


def runs(agent: Agent, logs: Path) -> Runs:
    """Return what runs the agent in the manifest's way; nothing is started yet."""
    log_file = logs / "agents.log"
    return Commands(agent, log_file) if agent.command else AgentWorkers(agent, log_file)


@dataclass(frozen=True, slots=True)
class Agents:
    """The processes, and how their sessions become samples."""

    spec: Spec
    agent: Agent
    gateways: Gateways
    runs: Runs
    traces: Traces | None = None

    async def start(self) -> None:
        """Start the gateways; agents start at their first call. Raises GatewayError."""
        await self.gateways.start()

    async def stop(self) -> None:
        """End all processes."""
        await asyncio.gather(self.runs.close(), self.gateways.stop())
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)

    def generator(
        self, router: RouterClient, outage: Outage | None, losses: Losses, alive: Callable[[], None]
    ) -> AgentGenerator:
        """Return what makes samples with the engines behind a router.

        `outage` decides which trajectories are lost; None: an error of one is an error of all. `alive` is called while
        agents run.
        """
        return AgentGenerator(
            name=self.runs.name,
            runs=self.runs,
            sessions=self.gateways,
            router=router.url,
            counting=Counting(
                branches=self.agent.branches,
                drop_outgrown=self.spec.rollout.overflow == "Drop",
                judged=bool(self.spec.reward.judgings),
                across_versions=self.spec.ahead is not None,
            ),
            concurrency=self.agent.concurrency,
            outage=outage,
            losses=losses,
            alive=alive,
            away_s=self.spec.recovery.outage_seconds,
            traces=self.traces,
        )


def agents(
    spec: Spec, agent: Agent, model: Path, session: ClientSession, router_key: str, patience_s: float, logs: Path
) -> Agents:
    """Return what has not started yet. `logs` is the directory for what its processes print.

    `patience_s` is the longest time without an answer of any engine [s].
    """
    settings = gateway_settings(spec, agent, model, patience_s)
    sessions = min(agent.concurrency, most_at_once(spec))
    processes = tuple(
        GatewayProcess(settings, logs / f"gateway-{number}.log", session, router_key)
        for number in range(num_gateways(sessions, cores()))
    )
    return Agents(spec, agent, Gateways(processes), runs(agent, logs), traces(os.environ))


def gateway_settings(spec: Spec, agent: Agent, model: Path, patience_s: float) -> Settings:
    """Return what gateways serve sessions with."""
    return Settings(
        model=str(model),
        context=context_room(spec, load_config(model).max_position_embeddings),
        new_tokens=spec.rollout.sampling.max_new_tokens,
        turns=agent.max_turns,
        lifetime_s=agent.timeout_seconds + FORGET_S,
        deadline_s=spec.rollout.longest_request_s,
        patience_s=patience_s,
        tool_parser=agent.tool_parser,
        reasoning_parser=agent.reasoning_parser,
        whole=spec.training.experts.replay is Replay.ROLLOUT,
        carries=spec.ahead is not None and spec.ahead.partial,
    )


def most_at_once(spec: Spec) -> int:
    """Return how many trajectories there may be: of a step and those ahead of it, or of an evaluation.

    Questions without a limit are taken for many.
    """
    rollout, limits = spec.rollout, [each.limit or math.inf for each in spec.data.evaluation_sets]
    held_out = [math.inf] if spec.data.held_out else []
    steps = 1 if spec.ahead is None else 1 + spec.ahead.max_staleness
    most = max([steps * rollout.prompts_per_step * rollout.samples_per_prompt, *limits, *held_out])
    return int(min(most, 1e6))
