"""The operator with a fuse: it is gone before its N-th write, to the API server or to a head, is sent.

A write that changes nothing is not counted: every new operator tries to make each job's Secret.

`CRASH_BEFORE=N python crashing_operator.py OPTIONS OF THE OPERATOR`
"""

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

import aiohttp

from rljob_operator.cluster.cluster import Cluster, ConflictError, GoneError
from rljob_operator.process import run
from rljob_operator.runtime import logs
from rljob_operator.settings import Settings, settings

BURNT = 99
"""exit code"""


class Fuse:
    """Ends the process at the N-th write."""

    def __init__(self, writes: int) -> None:
        self._left = writes

    def write(self) -> None:
        self._left -= 1
        if self._left == 0:
            os._exit(BURNT)

    def spare(self) -> None:
        """Forget the last write: it was refused."""
        self._left += 1


class CrashingCluster(Cluster):
    """The real connection, with a fuse in front of it."""

    fuse: Fuse

    async def request(self, method: str, where: str, *rest: Any, **more: Any) -> Any:
        counts = method != "GET" and "/leases" not in where
        if counts:
            self.fuse.write()
        try:
            return await super().request(method, where, *rest, **more)
        except (ConflictError, GoneError):
            if counts:
                self.fuse.spare()
            raise


async def main(given: Settings, fuse: Fuse) -> int:
    async def before(_: aiohttp.ClientSession, __: SimpleNamespace, request: aiohttp.TraceRequestStartParams) -> None:
        if request.method != "GET":
            fuse.write()

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(before)
    cluster = await CrashingCluster.connect(given.kubeconfig, given.identity)
    cluster.fuse = fuse
    async with aiohttp.ClientSession(trace_configs=[trace]) as session:
        return await run(given, cluster, session)


if __name__ == "__main__":
    options = settings(sys.argv[1:], os.environ)
    logs.configure(options.log_level)
    os.environ["KUBECONFIG"] = options.kubeconfig or ""
    sys.exit(asyncio.run(main(options, Fuse(int(os.environ["CRASH_BEFORE"])))))
