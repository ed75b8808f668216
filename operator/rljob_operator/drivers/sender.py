"""Sends a job's orders to Ray and to the driver, in a separate task: a silent head delays no other job.

    plan.Orders ─► Sender.give ─► (newest orders, without what was accepted) ─► Ray, driver ─► accepted(order)

Only the newest orders count: one that the plan no longer gives is not sent. Each is sent until it is accepted, and
reported as accepted once. Repeating one is harmless, so an order whose answer is lost is sent again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rljob_api.control import EngineOrder, Scale
from rljob_api.recovery import RestartEngine
from rljob_operator.drivers.driver_api import Control, DriverUnreachableError, RayJobs
from rljob_operator.plan import NO_ORDERS, Orders

log = logging.getLogger(__name__)

STOP_AGAIN_S = 60.0
"""before a driver that has not stopped is stopped again [s]"""
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 15.0
"""between two tries of orders that are not accepted; it doubles from the first [s]"""


@dataclass(frozen=True, slots=True)
class Submit:
    """Start the driver."""

    entrypoint: str
    """its command line"""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the driver at once."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Save and end."""


Order = Submit | Stop | Drain | RestartEngine | Scale


class Sender:
    """Sends the orders for the driver of one attempt."""

    def __init__(
        self,
        submission_id: str,
        jobs: RayJobs,
        control: Control,
        clock: Callable[[], float],
        answered: Callable[[Order, bool], None],
    ) -> None:
        """`clock` returns unix seconds. `answered` is called with an order that was sent, and whether it was accepted:
        with False after each failed try, with True once.
        """
        self._name = submission_id
        self._jobs = jobs
        self._control = control
        self._clock = clock
        self._answered = answered
        self._orders = NO_ORDERS
        self._given = asyncio.Event()
        self._stopped_at = 0.0
        self._is_submitted = False
        self._was_submitted = False
        self._is_drained = False
        self._restarted: set[tuple[str, int]] = set()
        self._scaled: Scale | None = None

    @property
    def is_submitted(self) -> bool:
        """Whether Ray has accepted the driver, as far as this process knows."""
        return self._is_submitted

    @property
    def is_stopping(self) -> bool:
        """Whether Ray has accepted a stop not long ago."""
        return self._clock() - self._stopped_at < STOP_AGAIN_S

    def give(self, orders: Orders) -> None:
        """Send these orders, and none of the earlier ones."""
        self._orders = orders
        self._given.set()

    def forget_submission(self) -> None:
        """Submit the driver again if that is ordered: Ray has lost it since it accepted it."""
        self._is_submitted = False
        self._given.set()

    async def run(self) -> None:
        """Send orders until cancelled."""
        wait_s = FIRST_RETRY_S
        while True:
            self._given.clear()
            if await self._send_all():
                wait_s = FIRST_RETRY_S
                await self._given.wait()
            else:
                await self._until_others_are_given(wait_s)
                wait_s = min(LONGEST_RETRY_S, 2.0 * wait_s)

    async def _send_all(self) -> bool:
        """Send each order once that is not accepted yet; return whether all were accepted.

        An order is looked up just before it is sent: it may have been withdrawn while another one was sent.
        """
        sent: set[Order] = set()
        has_failed = False
        while (order := next((each for each in self._outstanding() if each not in sent), None)) is not None:
            sent.add(order)
            try:
                is_new = await self._send(order)
            except DriverUnreachableError as error:
                has_failed = True
                log.warning("action=order order=%s outcome=failed will try again: %s", order, error)
                self._answered(order, False)
            else:
                if is_new:
                    log.info("action=order submission=%s order=%s", self._name, order)
                    self._answered(order, True)
        return not has_failed

    def _outstanding(self) -> Iterator[Order]:
        """Return the orders that have to be sent, the most urgent first."""
        wanted = self._orders
        if wanted.stop and not self.is_stopping:
            yield Stop()
        if wanted.submit is not None and not self._is_submitted:
            yield Submit(wanted.submit)
        if wanted.drain and not self._is_drained:
            yield Drain()
        yield from (each for each in wanted.engines if (each.engine, each.generation) not in self._restarted)
        if wanted.scale is not None and wanted.scale != self._scaled:
            yield wanted.scale

    async def _send(self, order: Order) -> bool:
        """Send an order; return whether it is new, and raise DriverUnreachableError if it is not accepted."""
        match order:
            case Submit(entrypoint):
                # Ray may know the driver from a submission whose answer was lost: that one is new, once.
                is_new = await self._jobs.submit(self._name, entrypoint) or not self._was_submitted
                self._is_submitted = self._was_submitted = True
                return is_new
            case Stop():
                await self._jobs.stop(self._name)
                self._stopped_at = self._clock()
            case Drain():
                await self._control.drain()
                self._is_drained = True
            case RestartEngine(engine, generation, reason):
                wanted = EngineOrder(generation=generation, desired="Running", reason=reason)
                await self._control.order(engine, wanted)
                self._restarted.add((engine, generation))
            case Scale():
                await self._control.scale(order)
                self._scaled = order
        return True

    async def _until_others_are_given(self, wait_s: float) -> None:
        """Wait for this time [s], or until other orders are given."""
        failed = self._orders
        try:
            # Not wait_for: Python 3.11's forgets a cancellation that comes together with what it waits for.
            async with asyncio.timeout(wait_s):
                while self._orders == failed:
                    await self._given.wait()
                    self._given.clear()
        except TimeoutError:
            return
