"""`python -m rljob_operator.webhook`: run the webhook. `--help` lists its options."""

import asyncio
import logging
import os
import signal
import sys

import uvloop

from rljob_operator.cluster.cluster import Cluster
from rljob_operator.runtime import garbage, logs
from rljob_operator.webhook import certificate
from rljob_operator.webhook.capacity_watch import CapacityWatch
from rljob_operator.webhook.certificate_renewal import Keeper
from rljob_operator.webhook.metrics import Metrics
from rljob_operator.webhook.mounted_certificate import Mounted
from rljob_operator.webhook.review.answer import answer
from rljob_operator.webhook.secret_path import PathKeeper
from rljob_operator.webhook.server import Server
from rljob_operator.webhook.settings import Settings, settings

log = logging.getLogger("rljob_operator.webhook")

LEAVES_S = 5.0
"""from SIGTERM to the end of listening: until then Services may still send requests [s]"""


async def main(given: Settings) -> int:
    """Serve until SIGTERM; return the exit code."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cluster = await Cluster.connect(given.kubeconfig, "rljob-webhook")
    capacity = CapacityWatch(cluster, given.namespaces, given.coming, given.defaults.has_kueue)
    metrics = Metrics()
    metrics.unreadable.set_function(lambda: capacity.unreadable)
    server = Server(lambda request: answer(request, given.defaults, capacity.seen), metrics)
    try:
        port, pages = await server.start(given.host, given.port, given.pages)
        log.info("action=serve port=%d pages=%d", port, pages)
        keeping = asyncio.create_task(_certificate(given, cluster, server).keep())
        telling = asyncio.create_task(
            PathKeeper(cluster, given.path_secret, given.configuration, server.use_path).keep()
        )
        following = asyncio.create_task(capacity.keep())
        collecting = asyncio.create_task(garbage.collect_now_and_then())
        ending = asyncio.create_task(stop.wait())
        working = {keeping, telling, following, collecting}
        done, _ = await asyncio.wait({*working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending not in done:  # a task that never ends has failed
            done.pop().result()
        await asyncio.sleep(LEAVES_S)
        for task in working:
            task.cancel()
    finally:
        await server.close()
        await cluster.close()
    return 0


def _certificate(given: Settings, cluster: Cluster, server: Server) -> Keeper | Mounted:
    if given.directory is not None:
        return Mounted(given.directory, server.use)
    return Keeper(cluster, given.secret, given.configuration, given.names, server.use, certificate.now)


if __name__ == "__main__":
    options = settings(sys.argv[1:], os.environ)
    garbage.collect_young_garbage_only()
    logs.configure(options.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(options)))
