"""The operator with a bug: its resync dies at its first pause."""

import asyncio
import os
import sys

from rljob_operator import process
from rljob_operator.__main__ import main
from rljob_operator.runtime import logs
from rljob_operator.settings import settings


async def dies(_: process.Operator) -> None:
    await asyncio.sleep(1.0)
    raise KeyError("a bug")


if __name__ == "__main__":
    process.Operator.resync_for_ever = dies  # type: ignore[method-assign]
    options = settings(sys.argv[1:], os.environ)
    logs.configure(options.log_level)
    os.environ["KUBECONFIG"] = options.kubeconfig or ""
    sys.exit(asyncio.run(main(options)))
