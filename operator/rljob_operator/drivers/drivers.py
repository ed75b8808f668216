"""Follows the drivers of all jobs: one watcher each, which polls Ray and the driver and keeps their last answers.

plan.Follow ─► Drivers.follow ─► Watcher ─► Driver (a value) ─► world
                                    ├─► changed(key) when the value changes, or an order is accepted
plan.Orders ─► Drivers.give ─────► Sender ─► Ray, driver
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from rljob_operator.cache.cache import Key
from rljob_operator.drivers.driver_api import Control, DriverUnreachableError, RayJobs
from rljob_operator.drivers.sender import Order, Sender
from rljob_operator.identity import CONTROL_PORT, DASHBOARD_PORT
from rljob_operator.plan import Follow, Orders
from rljob_operator.world.driver_news import News, after_answer, after_no_answer, after_refusal, after_report, news_of
from rljob_operator.world.world import ALIVE, ENDED, Driver, DriverState

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""between two requests to Ray about a running or ended driver [s]"""
FIRST_LOOK_S = 1.0
"""the same until Ray shows it running [s]"""
RETRY_S = 1.0
POLL_S = 1.0
"""the shortest time from one poll of a driver to the next: a driver may answer at once, again and again [s]"""
REFUSALS = (401, 403)
"""the answers of a driver or Ray to a wrong token; Ray's is 403, and 401 to none"""


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
        answered: Callable[[Order, bool], None],
    ) -> None:
        """`answered` is called with each order that was sent, and whether it was accepted."""
        self.follow = follow
        self._jobs = jobs
        self._control = control
        self._clock = clock
        self._changed = changed
        self._answered_at = clock()
        self._look_now = asyncio.Event()
        self._seen = Driver(follow.submission_id, since=clock())
        self._sender = Sender(follow.submission_id, jobs, control, clock, self._order_answered)
        self._answered = answered

    @property
    def driver(self) -> Driver:
        """All that is known of the driver."""
        return replace(self._seen, is_stopping=self._sender.is_stopping)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_ray())
            group.create_task(self._watch_driver())
            group.create_task(self._sender.run())

    def give(self, orders: Orders) -> None:
        """Have these orders sent, and none of the earlier ones."""
        self._sender.give(orders)

    def _order_answered(self, order: Order, is_accepted: bool) -> None:
        self._answered(order, is_accepted)
        if is_accepted:
            self._look_now.set()
            self._changed(News.CHANGE)

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
        now, was_submitted = self._clock(), self._sender.is_submitted
        try:
            seen = await self._jobs.look(self.follow.submission_id)
        except DriverUnreachableError as error:
            log.debug("action=look failed, will try again: %s", error)
            seen_now = after_no_answer(self._seen, self._answered_at, now)
            self._keep(after_refusal(seen_now, now) if error.status in REFUSALS else seen_now)
            return
        if was_submitted and seen.state is DriverState.ABSENT:
            self._sender.forget_submission()
        self._answered_at = self._clock()
        self._keep(after_answer(self._seen, seen, self._answered_at))

    async def _watch_driver(self) -> None:
        revision: int | None = None
        clock = asyncio.get_running_loop().time
        while True:
            if self._seen.state not in ALIVE:
                await asyncio.sleep(RETRY_S)
                continue
            asked_at = clock()
            try:
                status = await self._control.status(revision)
            except DriverUnreachableError as error:
                log.debug("action=poll failed, will try again: %s", error)
                if revision is not None:
                    self._look_now.set()  # it has answered before: mostly it has ended, and Ray knows
                if error.status in REFUSALS:
                    self._keep(after_refusal(self._seen, self._clock()))
                await asyncio.sleep(RETRY_S)
                continue
            known = after_report(self._seen, status, self.follow.attempt, self._clock())
            if known is None:
                await asyncio.sleep(RETRY_S)
                continue
            revision = status.revision
            self._keep(known)
            await asyncio.sleep(asked_at + POLL_S - clock())

    def _keep(self, seen: Driver) -> None:
        before, self._seen = self._seen, seen
        if (news := news_of(before, seen)) is not News.NOTHING:
            self._changed(news)


class Drivers:
    """The watchers of all jobs."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        resolve: Resolver,
        clock: Callable[[], float],
        changed: Callable[[Key, News], None],
        answered: Callable[[Order, bool], None],
    ) -> None:
        """`clock` returns unix seconds; `changed` is called when a job's driver has news, `answered` with an order that
        was sent, and whether it was accepted.
        """
        self._session = session
        self._resolve = resolve
        self._clock = clock
        self._changed = changed
        self._answered = answered
        self._tokens: dict[Key, str] = {}
        self._watchers: dict[Key, tuple[Watcher, asyncio.Task[None]]] = {}

    @property
    def followed(self) -> int:
        """How many drivers are watched."""
        return len(self._watchers)

    def driver(self, key: Key) -> Driver | None:
        """Return what is known of a job's driver."""
        return self._watchers[key][0].driver if key in self._watchers else None

    async def follow(self, key: Key, wanted: Follow | None, token: str) -> None:
        """Watch this driver of the job, and no other."""
        if key in self._watchers:
            watcher, task = self._watchers[key]
            if watcher.follow == wanted and self._tokens.get(key) == token:
                return
            del self._watchers[key]
            await _cancelled(task)
        self._tokens.pop(key, None)
        if wanted is None:
            return
        self._tokens[key] = token
        jobs = RayJobs(self._session, self._resolve(wanted.namespace, wanted.service, DASHBOARD_PORT), token)
        control = Control(self._session, self._resolve(wanted.namespace, wanted.service, CONTROL_PORT), token)
        changed = lambda news: self._changed(key, news)  # noqa: E731
        watcher = Watcher(wanted, jobs, control, self._clock, changed, self._answered)
        self._watchers[key] = watcher, asyncio.create_task(_kept_running(watcher, key))

    def give(self, key: Key, orders: Orders) -> None:
        """Have these orders sent to the job's driver, and none of the earlier ones; an unwatched driver gets none."""
        if key in self._watchers:
            self._watchers[key][0].give(orders)

    async def close(self) -> None:
        """End all watchers."""
        watchers, self._watchers = self._watchers, {}
        for _, task in watchers.values():
            await _cancelled(task)


async def _kept_running(watcher: Watcher, key: Key) -> None:
    """Watch until cancelled. What a head answers is its tenant's to choose, so no answer may end the process."""
    while True:
        try:
            await watcher.run()
        except Exception:  # the top of a task that is not awaited
            log.exception("action=watch job=%s outcome=failed will try again", key)
        await asyncio.sleep(LOOK_S)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
