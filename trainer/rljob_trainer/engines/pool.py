"""All engines of a run and the router: starts them, watches them, takes the dead out of service, brings restarted ones
back, adds new ones and lets some go. Everything runs in the driver's background loop.

The shell around `lifecycle.py`: what an engine's state becomes is decided there, and this module makes the router list
exactly the serving engines. `health.py` keeps what is reported of each, `memory.py` which GPU memory it has. Whether a
dead engine is restarted is decided elsewhere.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rljob_api.control import EngineState, EngineStatus
from rljob_trainer.engines import lifecycle, memory
from rljob_trainer.engines.client import EngineClient, EngineError, each
from rljob_trainer.engines.health import Health, without_log
from rljob_trainer.engines.scaling import Member, joining, leaving
from rljob_trainer.engines.served import EngineStartError, Served
from rljob_trainer.metrics import Publication
from rljob_trainer.processes.kept_process import ProcessExit

log = logging.getLogger(__name__)

LAST_REQUESTS_S = 600.0
"""longest wait for the last requests of an engine that leaves; what is not answered then is asked of the others [s]"""
ASK_S = 5.0
LOOK_S = 0.2
EXIT_S = 1.0
"""how much later than its first failed request the exit of a server may be noticed [s]"""


class Host(Protocol):
    """Where one engine's server runs: a `ray_host.RayHost`, or a fake of tests, which have no Ray."""

    async def start(self, timeout_s: float) -> Served:
        """Start the server; raise EngineStartError."""

    async def wait(self) -> ProcessExit:
        """Return how the server ended, once it has."""

    async def stop(self) -> None:
        """Kill it, if it runs."""

    async def leave(self) -> None:
        """Kill it, and give back the room that it had."""

    @property
    def node(self) -> str | None:
        """Address of its machine; None: it waits for room."""


class Routing(Protocol):
    """Who gets requests: a `router.Router`, or a fake of tests. Both are done when they return. Raises EngineError."""

    async def add(self, url: str) -> None: ...

    async def remove(self, url: str) -> None: ...


CatchUp = Callable[[Sequence[EngineClient]], Coroutine[Any, Any, Publication | None]]
"""brings the current weights to engines that missed them; returns None when it cannot be done now: the next publication
will do it"""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """From `spec.recovery`."""

    probe_failures: int
    """failed probes in a row that make an engine dead"""
    probe_interval_s: float
    probe_timeout_s: float
    start_timeout_s: float
    engines_per_node: int = 1
    """how many leave together, see `scaling.leaving`"""


@dataclass
class _Engine:
    name: str
    host: Host
    health: Health
    state: lifecycle.State = field(default_factory=lambda: lifecycle.Starting(0))
    served: Served | None = None
    restarts: int = 0
    receiving: int = 0
    """publications to it that are under way: it answers no probes meanwhile, and publications have other deadlines"""
    routed: bool = False
    """the router lists it"""
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """held while its process is started or ended"""
    routing: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)


class EnginePool:
    """The engines of a run."""

    def __init__(
        self,
        names: Iterable[str],
        host: Callable[[str], Host],
        health: Callable[[str], Health],
        client: Callable[[str, str], EngineClient],
        routing: Routing,
        settings: PoolSettings,
        catch_up: CatchUp,
        sharing: memory.Sharing | None = None,
    ) -> None:
        """`host` and `health` are made for each engine, those of `names` and any that are added; `client` is the client
        of the engine of a name at a URL.

        Without `sharing` a learner needs nothing of the engines' GPUs.
        """
        self._engines = {name: _Engine(name, host(name), health(name)) for name in names}
        self._host = host
        self._health = health
        self._last_generations: dict[str, int] = {}
        """of engines that have left: a successor of the same name counts on"""
        self._client_of = client
        self._routing = routing
        self._settings = settings
        self._catch_up = catch_up
        self._residency = memory.Residency()
        self.sharing = sharing or memory.Together()
        """how a learner shares the engines' GPUs"""
        self._version: int | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start all engines at once; raise EngineStartError when not one of them starts. None serves yet."""
        await asyncio.gather(*(self._bring_up(engine, 0) for engine in self._engines.values()))
        if all(isinstance(engine.state, lifecycle.Dead) for engine in self._engines.values()):
            raise EngineStartError("\n".join(engine.health.last_error for engine in self._engines.values()))

    async def stop(self) -> None:
        """Stop everything; report open incidents as they are."""
        self._stopping = True
        tasks = [task for engine in self._engines.values() for task in engine.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(engine.host.stop() for engine in self._engines.values()))
        for engine in self._engines.values():
            engine.health.close()

    async def publish(
        self, version: int, publish: Callable[[int, Sequence[EngineClient]], Coroutine[Any, Any, Publication]]
    ) -> Publication:
        """Publish `version` to every engine that answers; the verified ones serve, the others are out of service."""
        engines = [engine for engine in self._engines.values() if _answers(engine)]
        publication = await self._publication(engines, publish(version, [self._client(engine) for engine in engines]))
        assert publication is not None, "publish always publishes"
        return publication

    def answering(self) -> list[EngineClient]:
        """Return the clients of the engines that answer, in service or not."""
        return [self._client(engine) for engine in self._engines.values() if _answers(engine)]

    def restart(self, name: str, generation: int) -> None:
        """Order that engine `name` be started anew as `generation`; an order that has been followed is harmless."""
        engine = self._engines[name]
        before = engine.state
        self._happens(engine, lifecycle.RestartOrdered(generation))
        if engine.state is not before:
            engine.restarts += 1
            log.info("engine=%s action=restart generation=%d", name, generation)
            self._spawn(engine, self._bring_back(engine, generation))

    def scale(self, wanted: int) -> None:
        """Let engines come or go until there are `wanted`; asking again is harmless.

        A new one serves when it holds the current weights, verified. One that goes gets no more requests, answers its
        last ones, and is stopped.
        """
        staying = [engine for engine in self._engines.values() if not isinstance(engine.state, lifecycle.Leaving)]
        members = [Member(each.name, each.host.node, isinstance(each.state, lifecycle.Serving)) for each in staying]
        for name in joining(self._engines, wanted - len(staying)):
            self._join(name)
        for name in leaving(members, len(staying) - wanted, self._settings.engines_per_node):
            engine = self._engines[name]
            self._happens(engine, lifecycle.LeaveOrdered(engine.state.generation))
            self._spawn(engine, self._leave(engine))

    def snapshot(self) -> tuple[EngineStatus, ...]:
        """Return how each engine is."""
        return tuple(
            EngineStatus(
                name=engine.name,
                state=EngineState(type(engine.state).__name__),
                since=engine.health.since,
                generation=engine.state.generation,
                restarts=engine.restarts,
                version=engine.state.version if isinstance(engine.state, lifecycle.Serving) else None,
                last_error=without_log(engine.health.last_error) or None,
                url=engine.served.url if engine.served else None,
                pid=engine.served.pid if engine.served else None,
                node=engine.host.node,
            )
            for engine in self._engines.values()
        )

    def serving_urls(self) -> tuple[str, ...]:
        """Return the engines that the router should list."""
        return tuple(engine.served.url for engine in self._engines.values() if engine.routed and engine.served)

    async def hold(self, parts: memory.Parts) -> None:
        """Let every engine that answers have these parts of its GPU memory and no others; what it allocates has
        undefined contents. Engines that fail are out of service, and their processes gone."""
        engines = [engine for engine in self._engines.values() if _answers(engine)]
        generations = {engine.name: engine.state.generation for engine in engines}
        failed = await self._hold(engines, parts)
        for name, reason in failed.items():
            self._happens(self._engines[name], lifecycle.PublishFailed(generations[name]), reason)
        await asyncio.gather(*(self._retire(self._engines[name]) for name in failed))

    async def cut(self) -> None:
        """Abort everything that engines generate, keeping the tokens; probes notice an engine that does not respond."""
        busy = lifecycle.Serving | lifecycle.Leaving
        generating = [engine for engine in self._engines.values() if isinstance(engine.state, busy)]
        clients = [self._client(engine) for engine in generating if engine.served is not None]
        _, failed = await each({client.name: client.abort_all(ASK_S) for client in clients})
        for name, reason in failed.items():
            log.info("engine=%s action=cut reason=%s", name, reason)

    # one engine's way up

    async def _bring_up(self, engine: _Engine, generation: int) -> None:
        try:
            engine.served = await engine.host.start(self._settings.start_timeout_s)
        except EngineStartError as error:
            self._happens(engine, lifecycle.StartFailed(generation), str(error))
            return
        engine.health.answered()
        self._residency.started(engine.name)
        log.info("engine=%s action=started pid=%d seconds=%.1f", engine.name, engine.served.pid, engine.served.seconds)
        self._happens(engine, lifecycle.Started(generation))
        self._spawn(engine, self._watch(engine, generation))
        self._spawn(engine, self._probe(engine, generation))

    async def _bring_back(self, engine: _Engine, generation: int) -> None:
        async with engine.moving:
            await self._route(engine)
            await engine.host.stop()
            await self._bring_up(engine, generation)
        if _answers(engine) and not self._must_wait():
            await self._publication([engine], self._catch_up([self._client(engine)]))

    def _join(self, name: str) -> None:
        generation = self._last_generations.get(name, -1) + 1
        engine = _Engine(name, self._host(name), self._health(name), lifecycle.Starting(generation))
        self._engines[name] = engine
        log.info("engine=%s action=join generation=%d", name, generation)
        self._spawn(engine, self._bring_back(engine, generation))

    async def _leave(self, engine: _Engine) -> None:
        await self._route(engine)
        while engine.receiving:  # a member that vanishes would spoil it for the others
            await asyncio.sleep(LOOK_S)
        if engine.served is not None:
            await self._last_requests(self._client(engine))
        others = engine.tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await engine.host.leave()
        del self._engines[engine.name]
        self._last_generations[engine.name] = engine.state.generation
        engine.health.close()
        log.info("engine=%s action=left", engine.name)

    async def _last_requests(self, client: EngineClient) -> None:
        """Return when an engine has nothing more to answer, or does not say so."""
        try:
            async with asyncio.timeout(LAST_REQUESTS_S):
                while await client.num_requests(ASK_S):
                    await asyncio.sleep(LOOK_S)
        except (EngineError, TimeoutError) as error:
            log.info("engine=%s action=leave reason=%r", client.name, error)

    async def _publication(
        self, engines: Sequence[_Engine], work: Coroutine[Any, Any, Publication | None]
    ) -> Publication | None:
        generations = {engine.name: engine.state.generation for engine in engines}
        for engine in engines:
            engine.receiving += 1
        try:
            for name, reason in (await self._hold(engines, self.sharing.publishing)).items():
                self._happens(self._engines[name], lifecycle.PublishFailed(generations[name]), reason)
            publication = await work
            if publication is not None:
                await self.sharing.published()
                verified = [self._engines[name] for name in publication.engines]
                publication = _without(publication, await self._hold(verified, memory.ALL))
        finally:
            for engine in engines:
                engine.receiving -= 1
        if publication is not None:
            await self._apply(publication, generations)
        return publication

    def _must_wait(self) -> bool:
        """Whether an engine waits for the next step's weights: the learner has no room beside engines that serve."""
        serving = any(isinstance(engine.state, lifecycle.Serving) for engine in self._engines.values())
        return serving and self.sharing.publishing != memory.ALL

    async def _apply(self, publication: Publication, generations: Mapping[str, int]) -> None:
        self._version = publication.version
        await asyncio.gather(*(self._exit(self._engines[name], generations[name]) for name in publication.failed))
        for name, reason in publication.failed.items():
            self._happens(self._engines[name], lifecycle.PublishFailed(generations[name]), reason)
        for name in publication.engines:
            self._happens(self._engines[name], lifecycle.WeightsVerified(generations[name], publication.version))
        for engine in self._engines.values():
            self._happens(engine, lifecycle.VersionMoved(engine.state.generation))
        await asyncio.gather(*(self._route(engine) for engine in self._engines.values()))

    # what is noticed

    async def _watch(self, engine: _Engine, generation: int) -> None:
        exit_ = await engine.host.wait()
        self._happens(engine, lifecycle.ProcessExited(generation), str(exit_), exit_.failed_at)

    async def _exit(self, engine: _Engine, generation: int) -> None:
        """Give the watch time to notice that the server has exited: that is then why a publication failed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                while engine.state.generation == generation and _answers(engine):
                    await asyncio.sleep(LOOK_S)

    async def _probe(self, engine: _Engine, generation: int) -> None:
        client = self._client(engine)
        while engine.state.generation == generation and not isinstance(engine.state, lifecycle.Dead):
            await asyncio.sleep(self._settings.probe_interval_s)
            if engine.receiving:
                continue
            try:
                await client.probe(self._settings.probe_timeout_s)
            except EngineError as error:
                if not engine.receiving:
                    self._happens(engine, lifecycle.ProbeFailed(generation), str(error), engine.health.last_answer)
            else:
                engine.health.answered()
                self._happens(engine, lifecycle.ProbeOk(generation))

    # what follows

    def _happens(
        self, engine: _Engine, event: lifecycle.Event, detail: str = "", failed_at: float | None = None
    ) -> None:
        """Advance the state; when the engine dies, report it, reroute and retire it."""
        before, what = engine.state, type(event).__name__
        engine.state = state = lifecycle.advance(before, event, self._version, self._settings.probe_failures)
        if (type(state), state.generation) != (type(before), before.generation):
            engine.health.moved()
        if state == before or self._stopping:
            return
        log.info(
            "engine=%s action=%s state=%s generation=%d", engine.name, what, type(state).__name__, state.generation
        )
        if isinstance(state, lifecycle.Dead):
            engine.health.died(state.generation, state.cause, detail, failed_at)
            log.error("engine=%s action=quarantine cause=%s detail=%s", engine.name, state.cause, detail)
            self._spawn(engine, self._retire(engine))

    async def _retire(self, engine: _Engine) -> None:
        """Deregister a dead engine, then kill its remaining processes: half a server must not answer."""
        async with engine.moving:
            await self._route(engine)
            if isinstance(engine.state, lifecycle.Dead):
                await engine.host.stop()

    async def _route(self, engine: _Engine) -> None:
        """Make the router list an engine exactly when it serves."""
        async with engine.routing:
            serves = isinstance(engine.state, lifecycle.Serving)
            if serves == engine.routed or engine.served is None:
                return
            try:
                await (self._routing.add(engine.served.url) if serves else self._routing.remove(engine.served.url))
            except EngineError as error:
                log.error("engine=%s action=route serves=%s reason=%s", engine.name, serves, error)
                if serves:
                    self._happens(engine, lifecycle.StartFailed(engine.state.generation), str(error))
                return
            engine.routed = serves
            if serves:
                engine.health.returned()
            else:
                engine.health.rerouted()

    async def _hold(self, engines: Sequence[_Engine], parts: memory.Parts) -> dict[str, str]:
        """Let engines have these parts of their GPU memory; return the failures by name."""
        return await self._residency.hold([self._client(engine) for engine in engines], parts)

    def _client(self, engine: _Engine) -> EngineClient:
        assert engine.served is not None, "an engine that was started has a url"
        return self._client_of(engine.name, engine.served.url)

    def _spawn(self, engine: _Engine, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        engine.tasks.add(task)
        task.add_done_callback(engine.tasks.discard)
        task.add_done_callback(_log_defect)


def _answers(engine: _Engine) -> bool:
    return isinstance(engine.state, lifecycle.Stale | lifecycle.Serving)


def _without(publication: Publication, failed: Mapping[str, str]) -> Publication:
    """Return a publication in which further engines have failed."""
    verified = tuple(name for name in publication.engines if name not in failed)
    return replace(publication, engines=verified, failed={**publication.failed, **failed})


def _log_defect(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("action=defect task=%s", task.get_name(), exc_info=error)
