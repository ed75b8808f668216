"""`python -m rljob_operator`: run the operator. `--help` lists its options."""

import asyncio
import os
import sys

import uvloop

from rljob_operator.cache.cache import Cache
from rljob_operator.cluster.cluster import Cluster
from rljob_operator.drivers.driver_api import open_session
from rljob_operator.drivers.head_resolver import HeadResolver
from rljob_operator.process import run
from rljob_operator.runtime import logs
from rljob_operator.settings import Settings, settings


async def main(given: Settings) -> int:
    cluster, cache = await Cluster.connect(given.kubeconfig, given.identity), Cache()
    resolver = HeadResolver(cache) if given.heads_by_pod else None
    try:
        async with open_session(resolver) as session:
            return await run(given, cluster, session, cache=cache)
    finally:
        await cluster.close()


if __name__ == "__main__":
    options = settings(sys.argv[1:], os.environ)
    logs.configure(options.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(options)))
