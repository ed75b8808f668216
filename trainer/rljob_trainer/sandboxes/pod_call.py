"""One call of a function, in a separate process: `python -I -S pod_call.py ANSWER`, started by `call_process.py`.

Standard input has a line with the settings, and later the request; the answer goes to the descriptor ANSWER. All are
JSON. Tools of the settings are imported while the process waits for the request. Of other modules only those of the
standard library are imported.
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
    settings = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = settings["searchPath"]
    restrict(settings["memoryBytes"])
    for path in settings["imports"]:
        with suppress(Exception, SystemExit):  # reported by the call that needs it
            tool(path)
    facts = answer(json.loads(sys.stdin.buffer.read()))
    with os.fdopen(descriptor, "w") as pipe:
        pipe.write(json.dumps(facts))
        pipe.write("\n")


def restrict(memory_bytes: int) -> None:
    """Give up what no tool needs, before any code of a tool is imported."""
    # Our own modules can be imported only now.
    from rljob_trainer.processes import file_access, system_calls

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
    file_access.restrict()
    system_calls.restrict()


def tool(path: str) -> Any:
    """Return the function `module:function`. Raises what its module raises."""
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the tool, or why it cannot be used."""
    from rljob_trainer.sandboxes import tool_worker

    try:
        tool(request["path"])
    except MemoryError:
        return {"memory": True}
    except (Exception, SystemExit) as error:  # noqa: BLE001  # any error of its module
        return {"refused": f"{type(error).__name__}: {error}"}
    if request["arguments"] is None:
        return {}
    try:
        return {"text": tool_worker.call(request["path"], request["arguments"])}
    except MemoryError:
        return {"memory": True}


if __name__ == "__main__":
    main(int(sys.argv[1]))
