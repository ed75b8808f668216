"""One call of a tool, in a process of its own: `python -I -S pod_call.py ANSWER`, started by `pod_server.py`.

The request comes from standard input, the answer goes to the descriptor ANSWER. Both are JSON. Only the standard
library is imported, and the tool's own modules.
"""

import importlib
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE_BYTES = 1 << 26
"""of one file"""
OPEN_FILES = 256


def main(descriptor: int) -> None:
    """Answer the request."""
    os.set_inheritable(descriptor, False)
    request = json.loads(sys.stdin.buffer.read())
    sys.path[:] = request["searchPath"]
    restrict(request["memoryBytes"])
    facts = answer(request)
    with os.fdopen(descriptor, "w") as pipe:
        pipe.write(json.dumps(facts))
        pipe.write("\n")


def restrict(memory_bytes: int) -> None:
    """Give up what no tool needs, before any code of a tool is imported."""
    # Our own modules can be imported only now.
    from rljob_trainer.processes import system_calls

    with suppress(OSError):  # where the kernel has to choose, it ends this process before the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    limits = {
        resource.RLIMIT_DATA: memory_bytes,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for name, most in limits.items():
        resource.setrlimit(name, (most, most))
    system_calls.close_memory()
    system_calls.restrict()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the tool, or why it cannot be used."""
    from rljob_trainer.conversations import tool_worker

    try:
        module, _, attribute = request["path"].partition(":")
        getattr(importlib.import_module(module), attribute)
    except MemoryError:
        return {"memory": True}
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever its module does
        return {"refused": f"{type(error).__name__}: {error}"}
    if request["arguments"] is None:
        return {}
    try:
        return {"text": tool_worker.call(request["path"], request["arguments"])}
    except MemoryError:
        return {"memory": True}


if __name__ == "__main__":
    main(int(sys.argv[1]))
