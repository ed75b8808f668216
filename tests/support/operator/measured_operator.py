"""The operator's program, which writes at its end what it has cost: most memory [MiB] and the longest step of its loop.

The first argument is the file for that, as JSON; all others are the operator's own. The loop is asyncio's own, and is
measured from the moment at which the operator leads.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from rljob_operator import process
from rljob_operator.__main__ import main
from rljob_operator.runtime import logs
from rljob_operator.settings import settings
from support.operator.loop_stops import Stops, peak_mib

STOPS, LEAD = Stops(), process.lead


async def measured(*given: Any, **more: Any) -> str | None:
    STOPS.watch()
    return await LEAD(*given, **more)


if __name__ == "__main__":
    options = settings(sys.argv[2:], os.environ)
    logs.configure(options.log_level)
    process.lead = measured
    code = asyncio.run(main(options))
    Path(sys.argv[1]).write_text(json.dumps({"peak_mib": peak_mib(), "stop_s": STOPS.longest_s}))
    sys.exit(code)
