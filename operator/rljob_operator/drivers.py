"""Follows the drivers of all jobs: one watcher for each, which asks Ray and the driver and keeps what they say.

plan.Follow ─► Drivers.follow ─► Watcher ─► Driver (a value) ─► world
                                    └─► changed(key) when it is another one
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from enum import Enum, auto
from typing import Any

import aiohttp

from rljob_api.control import EngineOrder, EngineState, Progress, Scale
from rljob_api.recovery import signs_of_life
from rljob_operator.cache import Key
from rljob_operator.driver_api import Control, DriverUnreachableError, RayJobs
from rljob_operator.identity import CONTROL_PORT, DASHBOARD_PORT
from rljob_operator.plan import Follow, Orders
from rljob_operator.world import ALIVE, ENDED, SILENT_S, Driver, DriverState

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""between two looks at what Ray says of a driver [s]"""
FIRST_LOOK_S = 1.0
"""the same while Ray has not shown it running [s]"""
STOP_AGAIN_S = 60.0
"""before a driver that should have stopped is stopped again [s]"""
RETRY_S = 1.0


class News(Enum):
    """What is new about a driver."""

    NOTHING = auto()
    PROGRESS = auto()
    """it goes on: nobody has to act, and who writes it down may take his time"""
    CHANGE = auto()


Resolver = Callable[[str, str, int], str]
"""from namespace, Service and port to a URL"""


class Watcher:
    """Watches the driver of one attempt until it is cancelled."""

    def __init__(
        self,
        follow: Follow,
        jobs: RayJobs,
        control: Control,
        clock: Callable[[], float],
        changed: Callable[[News], None],
    ) -> None:
        self.follow = follow
        self._jobs = jobs
        self._control = control
        self._clock = clock
        self._changed = changed
        self._answered_at = clock()
        self._stopped_at = 0.0
        self._is_submitted = False
        self._is_drained = False
        self._restarted: set[tuple[str, int]] = set()
        self._scaled: Scale | None = None
        self._look_now = asyncio.Event()
        self._seen = Driver(follow.submission_id, since=clock())

    @property
    def driver(self) -> Driver:
        """What is known of the driver."""
        return replace(self._seen, is_stopping=self._clock() - self._stopped_at < STOP_AGAIN_S)

    async def run(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_ray())
            group.create_task(self._watch_driver())

    async def obey(self, orders: Orders) -> Orders:
        """Tell Ray and the driver what is ordered; raise DriverUnreachableError. Return what was not told before.

        The status that shows an order as accepted may still be on its way when the next plan repeats it.
        """
        name = self.follow.submission_id
        new = replace(
            orders,
            drain=orders.drain and not self._is_drained,
            engines=tuple(order for order in orders.engines if (order.engine, order.generation) not in self._restarted),
            scale=orders.scale if orders.scale != self._scaled else None,
        )
        if new.submit is not None:
            is_new = await self._jobs.submit(name, new.submit)
            log.info("action=submit submission=%s new=%s", name, is_new)
            if self._is_submitted and not is_new:
                new = replace(new, submit=None)
            self._is_submitted = True
        if new.stop:
            await self._jobs.stop(name)
            self._stopped_at = self._clock()
            log.info("action=stop submission=%s", name)
        if new.drain:
            await self._control.drain()
            self._is_drained = True
            log.info("action=drain submission=%s", name)
        for order in new.engines:
            wanted = EngineOrder(generation=order.generation, desired="Running", reason=order.reason)
            await self._control.order(order.engine, wanted)
            self._restarted.add((order.engine, order.generation))
            log.info("action=restart engine=%s generation=%d reason=%r", order.engine, order.generation, order.reason)
        if new.scale is not None:
            await self._control.scale(new.scale)
            self._scaled = new.scale
            log.info("action=scale engines=%d generation=%d", new.scale.engines, new.scale.generation)
        if new != Orders():
            self._look_now.set()
        return new

    async def _watch_ray(self) -> None:
        while True:
            await self._ask_ray()
            wait_s = LOOK_S if self._seen.state is DriverState.RUNNING or self._seen.state in ENDED else FIRST_LOOK_S
            try:
                # Not wait_for: Python 3.11's forgets a cancellation that comes together with what it waits for.
                async with asyncio.timeout(wait_s):
                    await self._look_now.wait()
            except TimeoutError:
                continue
            finally:
                self._look_now.clear()

    async def _ask_ray(self) -> None:
        now = self._clock()
        try:
            seen = await self._jobs.look(self.follow.submission_id)
        except DriverUnreachableError as error:
            log.debug("action=look failed, will try again: %s", error)
            if now - self._answered_at > SILENT_S:
                self._keep(replace(self._seen, state=DriverState.UNKNOWN))
            return
        self._answered_at = self._clock()
        # Who was out of sight has not been silent: from here on its silence counts again.
        since = self._answered_at if self._seen.state is DriverState.UNKNOWN else self._seen.since
        self._keep(replace(self._seen, state=seen.state, exit_code=seen.exit_code, message=seen.message, since=since))

    async def _watch_driver(self) -> None:
        revision: int | None = None
        while True:
            if self._seen.state not in ALIVE:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                status = await self._control.status(revision)
            except DriverUnreachableError as error:
                log.debug("action=poll failed, will try again: %s", error)
                await asyncio.sleep(RETRY_S)
                continue
            if status.attempt != self.follow.attempt:
                # The driver of an older attempt still holds the port.
                await asyncio.sleep(RETRY_S)
                continue
            revision = status.revision
            lives = self._seen.status is None or signs_of_life(status) != signs_of_life(self._seen.status)
            beat_at = self._clock() if lives else self._seen.beat_at
            self._keep(replace(self._seen, status=status, beat_at=beat_at))

    def _keep(self, seen: Driver) -> None:
        before, self._seen = self._seen, seen
        if (news := news_of(before, seen)) is not News.NOTHING:
            self._changed(news)


def news_of(before: Driver, now: Driver) -> News:
    """Return what is new about a driver."""
    if before.status == now.status and replace(before, beat_at=0.0) == replace(now, beat_at=0.0):
        return News.NOTHING
    # While an engine is not well, time decides about it, and every sign of the driver is a reason to look.
    engines = now.status.engines if now.status else ()
    goes_on = all(engine.state is EngineState.HEALTHY for engine in engines)
    return News.PROGRESS if goes_on and _without_progress(before) == _without_progress(now) else News.CHANGE


def _without_progress(driver: Driver) -> Driver:
    if driver.status is None:
        return replace(driver, beat_at=0.0)
    nothing = {"revision": 0, "phase": "", "phase_since": 0.0, "longest_phase_seconds": 0.0, "heartbeat": 0.0}
    return replace(driver, beat_at=0.0, status=driver.status.model_copy(update={**nothing, "progress": Progress()}))


class Drivers:
    """The watchers of all jobs."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        resolve: Resolver,
        clock: Callable[[], float],
        changed: Callable[[Key, News], None],
    ) -> None:
        """`clock` returns unix seconds; `changed` is called when something new is known of a job's driver."""
        self._session = session
        self._resolve = resolve
        self._clock = clock
        self._changed = changed
        self._watchers: dict[Key, tuple[Watcher, asyncio.Task[None]]] = {}

    @property
    def followed(self) -> int:
        """How many drivers are watched."""
        return len(self._watchers)

    def driver(self, key: Key) -> Driver | None:
        """Return what is known of a job's driver."""
        return self._watchers[key][0].driver if key in self._watchers else None

    async def follow(self, key: Key, wanted: Follow | None, token: str) -> None:
        """Watch this driver of the job and no other."""
        if key in self._watchers:
            watcher, task = self._watchers[key]
            if watcher.follow == wanted and not task.done():
                return
            del self._watchers[key]
            await _cancelled(task)
        if wanted is None:
            return
        jobs = RayJobs(self._session, self._resolve(wanted.namespace, wanted.service, DASHBOARD_PORT))
        control = Control(self._session, self._resolve(wanted.namespace, wanted.service, CONTROL_PORT), token)
        watcher = Watcher(wanted, jobs, control, self._clock, changed=lambda news: self._changed(key, news))
        self._watchers[key] = watcher, asyncio.create_task(_logged(watcher.run(), key))

    async def obey(self, key: Key, orders: Orders) -> Orders:
        """Tell Ray and the driver what is ordered; raise DriverUnreachableError. Return what was not told before."""
        return await self._watchers[key][0].obey(orders) if orders != Orders() else orders

    async def close(self) -> None:
        """End all watchers."""
        watchers, self._watchers = self._watchers, {}
        for _, task in watchers.values():
            await _cancelled(task)


async def _logged(work: Coroutine[Any, Any, None], key: Key) -> None:
    try:
        await work
    except Exception:  # the top of a task: nobody awaits it; `follow` starts another
        log.exception("action=watch job=%s failed", key)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
