"""Any course of publications, failures, restarts and scaling: requests reach only engines with the current weights."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_trainer.metrics import Publication
from support.trainer.engine_pool import PROBE_S, Engines, Scene
from support.trainer.http_answers import Reply
from support.trainer.virtual_time import VirtualBackground

WHICH = st.integers(0, 3)
SETTLED_S = 2.0
"""longer than anything takes that the pool begins by itself"""


class PoolLife(RuleBasedStateMachine):
    """After each step the pool has the time to finish what it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.background = VirtualBackground()
        self.scene = Scene()
        self.current: int | None = None
        self.publication: asyncio.Task[Publication] | None = None
        self.failed: dict[str, str] = {}
        self.go_on = asyncio.Event()
        self.generations: dict[str, set[int]] = {}
        self.do(self.scene.pool.start())

    def do(self, work: Coroutine[Any, Any, object]) -> None:
        async def settled() -> None:
            await work
            await asyncio.sleep(SETTLED_S)

        self.background.run(settled(), None)

    def name(self, which: int) -> str:
        names = sorted(self.scene.states())
        return names[which % len(names)]

    @rule(fails=st.none() | WHICH)
    def publish(self, fails: int | None) -> None:
        failed = {} if fails is None else {self.name(fails): "1 of 14 tensors differ"}
        self.scene.ahead = False
        version = 0 if self.current is None else self.current + 1
        self.do(self.scene.publish(version, failed))
        self.current = version

    @rule(misses=WHICH)
    def publish_past_one(self, misses: int) -> None:
        missed, version = self.name(misses), 0 if self.current is None else self.current + 1

        async def publish(version: int, engines: Engines) -> Publication:
            return await self.scene._publish(version, [each for each in engines if each.name != missed], {})

        self.do(self.scene.pool.publish(version, publish))
        self.current = version

    @precondition(lambda self: self.publication is None)
    @rule()
    def begin_a_publication(self) -> None:
        version = 0 if self.current is None else self.current + 1
        self.go_on, self.failed, self.scene.ahead = asyncio.Event(), {}, True

        async def transfer(version: int, engines: Engines) -> Publication:
            await self.go_on.wait()
            return await self.scene._publish(version, engines, self.failed)

        async def begin() -> None:
            self.publication = asyncio.ensure_future(self.scene.pool.publish(version, transfer))

        self.do(begin())

    @precondition(lambda self: self.publication is not None)
    @rule(fails=st.none() | WHICH)
    def end_the_publication(self, fails: int | None) -> None:
        publication, self.publication = self.publication, None
        assert publication is not None
        self.failed = {} if fails is None else dict.fromkeys("ab"[fails : fails + 1], "lost")
        self.failed = {name: reason for name, reason in self.failed.items() if name in self.scene.states()}
        self.scene.ahead = False

        async def end() -> None:
            self.go_on.set()
            self.current = (await publication).version

        self.do(end())

    @rule(which=WHICH)
    def crash(self, which: int) -> None:
        async def crash() -> None:
            self.scene.hosts[self.name(which)].crash()

        self.do(crash())

    @rule(which=WHICH, ahead=st.integers(0, 2))
    def restart(self, which: int, ahead: int) -> None:
        name = self.name(which)
        (engine,) = [engine for engine in self.scene.pool.snapshot() if engine.name == name]

        async def restart() -> None:
            self.scene.pool.restart(name, engine.generation + ahead)

        self.do(restart())

    @rule(which=WHICH, fails=st.booleans())
    def let_starts_fail(self, which: int, fails: bool) -> None:
        self.scene.hosts[self.name(which)].fails = "no memory" if fails else None

    @rule(wanted=st.integers(1, 4))
    def scale(self, wanted: int) -> None:
        async def scale() -> None:
            self.scene.pool.scale(wanted)

        self.do(scale())

    @rule(which=WHICH, silent=st.booleans())
    def wait_for_probes(self, which: int, silent: bool) -> None:
        answer = Reply(500, "no answer") if silent else {}
        self.scene.http.answers[f"{self.name(which)}:1/server_info"] = answer
        self.do(asyncio.sleep(2 * PROBE_S))

    @rule(ahead=st.booleans())
    def train(self, ahead: bool) -> None:
        self.scene.ahead = ahead or self.publication is not None

    @invariant()
    def requests_reach_only_engines_that_hold_the_current_weights(self) -> None:
        assert all(self.scene.held[url] == self.current for url in self.scene.router.urls)

    @invariant()
    def requests_reach_just_the_processes_that_serve(self) -> None:
        serving = {each.url for each in self.scene.pool.snapshot() if each.state in ("Healthy", "Suspect")}
        assert self.scene.router.urls == serving == set(self.scene.pool.serving_urls())

    @invariant()
    def no_dead_process_is_left(self) -> None:
        for engine in self.scene.pool.snapshot():
            host = self.scene.hosts[engine.name]
            assert engine.state != "Dead" or host.ended.is_set() or host.fails

    @invariant()
    def no_generation_is_started_twice(self) -> None:
        for engine in self.scene.pool.snapshot():
            seen = self.generations.setdefault(engine.name, set())
            seen.add(engine.generation)
            assert self.scene.hosts[engine.name].starts <= len(seen)

    def teardown(self) -> None:
        self.go_on.set()
        self.do(self.scene.pool.stop())
        self.background.close()
        engines = [incident.engine for incident in self.scene.incidents]
        assert all(incident.error for incident in self.scene.incidents), engines


TestPoolLife = PoolLife.TestCase
TestPoolLife.settings = settings(max_examples=60, stateful_step_count=25)
