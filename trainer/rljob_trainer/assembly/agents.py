"""Starts gateways and workers for agents beside router and engines."""

from concurrent.futures import Future
from dataclasses import dataclass

import aiohttp

from rljob_trainer.agents.factory import Agents, agents
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.settings import patience_s
from rljob_trainer.assembly.stages import Material
from rljob_trainer.engines.client import open_session

STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class StartedAgents:
    """Agents whose gateways may still be starting."""

    agents: Agents
    started: "Future[None]"


def start_agents(foundation: Foundation, material: Material, router_key: str) -> StartedAgents | None:
    """Start what the manifest's agent needs; return without waiting for it. None: there is no agent."""
    spec, background, stack = foundation.spec, foundation.background, foundation.stack
    if spec.rollout.agent is None:
        return None
    session = background.run(_session(), timeout_s=10)
    stack.callback(lambda: background.run(session.close(), timeout_s=10))
    logs = foundation.directory / "logs"
    made = agents(spec, spec.rollout.agent, material.model, session, router_key, patience_s(spec), logs)
    stack.callback(lambda: background.run(made.stop(), timeout_s=STOP_S))
    return StartedAgents(made, background.submit(made.start()))


async def _session() -> aiohttp.ClientSession:
    return open_session()
