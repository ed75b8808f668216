"""What the process of tools does for each call. Only the standard library is imported, and the tools' own modules."""

import importlib
import json
from collections.abc import Awaitable, Mapping
from typing import Any


def call(path: str, arguments: Mapping[str, Any]) -> str:
    """Return what the tool `module:function` returns, as text, or as JSON; or what it raises, for the model.

    Raises MemoryError, which ends no process but says that the limit was met.
    """
    module, _, attribute = path.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    try:
        returned = function(**arguments)
        if isinstance(returned, Awaitable):
            returned = _result_of(returned)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the model sees every error
        return f"Error: {type(error).__name__}: {error}"
    return returned if isinstance(returned, str) else json.dumps(returned, default=str)


def _result_of(awaitable: Awaitable[Any]) -> Any:
    # Not at the top: in a pod each call is a new process, and few tools need it.
    import asyncio

    async def awaited() -> Any:
        return await awaitable

    return asyncio.run(awaited())
