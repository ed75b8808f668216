"""`python -m rljob_operator`: run the operator. `--help` lists its options."""

import asyncio
import os
import sys

import uvloop

from rljob_operator import logs
from rljob_operator.cluster import Cluster
from rljob_operator.driver_api import open_session
from rljob_operator.process import run
from rljob_operator.settings import Settings, settings


async def main(given: Settings) -> int:
    cluster = await Cluster.connect(given.kubeconfig, given.identity)
    try:
        async with open_session() as session:
            return await run(given, cluster, session)
    finally:
        await cluster.close()


if __name__ == "__main__":
    options = settings(sys.argv[1:], os.environ)
    logs.configure(options.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(options)))
