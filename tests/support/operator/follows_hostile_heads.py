"""A program that follows the drivers of some jobs, as the operator does, until its input ends; it prints as JSON what
that cost. What heads and drivers answer is up to a server elsewhere, and reaches the real `plan` of a job that trains.

The pauses between requests are taken out, so that thousands of answers come in a minute.
"""

import asyncio
import json
import logging
import sys
import time
from dataclasses import replace

from rljob_operator.drivers import driver_api, drivers
from rljob_operator.drivers.drivers import Drivers
from rljob_operator.drivers.sender import Order
from rljob_operator.plan import plan
from rljob_operator.runtime import logs
from rljob_operator.runtime.loop_lag import LoopLag
from rljob_operator.world.driver_news import News
from support.operator.loop_stops import Stops, peak_mib
from support.operator.operator_world import NOW, Surroundings

JOBS = 20
TOKEN = "CONTROL-TOKEN-OF-THE-JOB"


class Operator:
    """The drivers of jobs that train, and a plan after each piece of news."""

    def __init__(self) -> None:
        self.around = Surroundings().to_running()
        self.plans = 0
        self.errors: list[str] = []
        self.states: set[str] = set()
        self.drivers: Drivers

    def changed(self, key: str, news: News) -> None:
        driver, here = self.drivers.driver(key), self.around.world
        observed = replace(here.observed, driver=driver, diagnosed={})
        self.plans += 1
        try:
            now = NOW + 10 + self.plans / 1_000
            todo = plan(self.around.job, replace(here, observed=observed), now)
            if todo.diagnose is not None:  # another process reads it, and recognises nothing
                read = replace(observed, diagnosed={todo.attempt: None})
                todo = plan(self.around.job, replace(here, observed=read), now)
            if todo.status is not None:
                todo.status.model_dump_json(by_alias=True)
        except Exception as error:  # noqa: BLE001  # what this program looks for
            self.errors.append(f"{type(error).__name__}: {str(error)[:300]}")
        if driver is not None:
            self.states.add(f"{driver.state} {'with' if driver.status else 'without'} a report")


async def follow(url: str) -> dict[str, object]:
    operator, stops, lag = Operator(), Stops(), LoopLag(time.monotonic)
    wanted = operator.around.plan().follow
    assert wanted is not None
    stops.watch()
    watching = asyncio.create_task(lag.watch())
    async with driver_api.open_session() as session:

        def answered(order: Order, is_accepted: bool) -> None: ...

        operator.drivers = Drivers(session, lambda *_: url, lambda: NOW, operator.changed, answered)
        for number in range(JOBS):
            await operator.drivers.follow(f"ml/job-{number}", wanted, TOKEN)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await operator.drivers.close()
    watching.cancel()
    return {
        "peak_mib": peak_mib(),
        "stop_s": stops.longest_s,
        "lag_s": round(lag.worst_s, 3),
        "plans": operator.plans,
        "states": sorted(operator.states),
        "errors": operator.errors[:5],
    }


def main() -> None:
    drivers.LOOK_S = drivers.FIRST_LOOK_S = drivers.RETRY_S = drivers.POLL_S = 0.02
    handler = logging.StreamHandler()
    handler.setFormatter(logs.OurFields("%(message)s"))
    logging.getLogger().addHandler(handler)
    print(json.dumps(asyncio.run(follow(sys.argv[1]))))


if __name__ == "__main__":
    main()
