"""The third stage, its engines: router and pool, started together and connected to orders, reports and weights.

order book ─► PoolCommands ─► EnginePool ─► Health ─► status and report
                                  └──────► CatchUp ─► publisher
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import aiohttp
import ray

from rljob_api import control
from rljob_trainer.assembly.cpu_threads import cpu_threads
from rljob_trainer.assembly.engine_weights import quantization_config
from rljob_trainer.assembly.foundation import Foundation
from rljob_trainer.assembly.settings import pool_settings, router_settings
from rljob_trainer.assembly.stages import Material
from rljob_trainer.engines import placement
from rljob_trainer.engines.client import EngineClient, RouterClient, open_session
from rljob_trainer.engines.command import EngineCommand, engine_command
from rljob_trainer.engines.health import Health, Report
from rljob_trainer.engines.key import new_key
from rljob_trainer.engines.placement import Slots
from rljob_trainer.engines.pool import EnginePool
from rljob_trainer.engines.ray_host import RayHost
from rljob_trainer.engines.router import Router
from rljob_trainer.metrics import Publication
from rljob_trainer.sync.gpu_sharing import LeavingLearner
from rljob_trainer.sync.publisher import Publisher


@dataclass
class CatchUp:
    """Brings weights to engines that missed a publication, by the publisher that the learner makes possible."""

    publisher: Publisher | None = None

    async def __call__(self, engines: Sequence[EngineClient]) -> Publication | None:
        """Return None when it cannot be done now; the next publication will do it."""
        return None if self.publisher is None else await self.publisher.catch_up(engines)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Engines behind a router, which may still be starting."""

    router: Router
    pool: EnginePool
    hosts: Mapping[str, RayHost]
    """of all engines that there are or have been"""
    started: "Future[None]"
    catch_up: CatchUp
    key: str = field(repr=False)
    """that router and engines demand"""
    sharing: LeavingLearner | None
    """None: the learner stays where it is"""

    @property
    def client(self) -> RouterClient:
        """The router's; it has one once it has started."""
        assert self.router.client is not None, "the router has been started"
        return self.router.client


def start_fleet(foundation: Foundation, material: Material, slots: Slots) -> Fleet:
    """Start router and engines; return without waiting for them."""
    spec, background, stack = foundation.spec, foundation.background, foundation.stack
    session = background.run(_session(), timeout_s=10)
    stack.callback(lambda: background.run(session.close(), timeout_s=10))
    log_file = foundation.directory / "logs" / "router.log"
    key, report = new_key(), _report(foundation)
    router = Router(router_settings(spec), log_file, session, ray.util.get_node_ip_address(), key, report)
    catch_up = CatchUp()
    sharing = LeavingLearner() if spec.learner_leaves else None
    hosts: dict[str, RayHost] = {}
    pool = EnginePool(
        names=tuple(engine.name for engine in foundation.topology.engines),
        host=_hosts(foundation, replace(_command(foundation, material), key=key), slots, hosts),
        health=partial(Health, report=report),
        client=partial(EngineClient, session, key=key),
        routing=router,
        settings=pool_settings(spec),
        catch_up=catch_up,
        sharing=sharing,
    )
    foundation.commands.connect(pool)
    stack.callback(lambda: background.run(router.stop(), timeout_s=30))
    stack.callback(lambda: background.run(pool.stop(), timeout_s=60))
    return Fleet(router, pool, hosts, background.submit(_both(router.start(), pool.start())), catch_up, key, sharing)


def _command(foundation: Foundation, material: Material) -> EngineCommand:
    return engine_command(
        foundation.spec,
        material.model,
        cpu_threads(foundation).engine,
        foundation.environ.get("PYTHONPATH", ""),
        foundation.directory,
        quantization_config(foundation.spec, material.model),
    )


def _hosts(
    foundation: Foundation, command: EngineCommand, slots: Slots, made: dict[str, RayHost]
) -> Callable[[str], RayHost]:
    """Return what makes the host of an engine: on the slots reserved for it, or for a new engine on further ones.

    The hosts are noted in `made`.
    """
    topology, device = foundation.topology, foundation.spec.runtime.device
    reserved = {engine.name: slots.reservation(engine.slots) for engine in topology.engines}

    def host(name: str) -> RayHost:
        reservation = reserved.pop(name, None) or placement.engine_reservation(topology, device)
        log_file = foundation.directory / control.ENGINE_LOG.format(engine=name)
        made[name] = RayHost(name, command, log_file, None, reservation)
        return made[name]

    return host


def _report(foundation: Foundation) -> Report:
    def report(incident: control.Incident, cause: str) -> None:
        foundation.status_store.report(incident)
        foundation.report.incident(incident, cause)

    return report


async def _session() -> aiohttp.ClientSession:
    return open_session()


async def _both(first: Awaitable[None], second: Awaitable[None]) -> None:
    await asyncio.gather(first, second)
