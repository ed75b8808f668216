"""What the process of tools does for each call. Only the standard library is imported, and the tools' own modules."""

import asyncio
import importlib
import inspect
import json
from collections.abc import Mapping
from typing import Any


def call(path: str, arguments: Mapping[str, Any]) -> str:
    """Return what the tool `module:function` returns, as text, or as JSON; or what it raises, for the model.

    Raises MemoryError, which ends no process but says that the limit was met.
    """
    module, _, attribute = path.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    try:
        returned = function(**arguments)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the model sees every error
        return f"Error: {type(error).__name__}: {error}"
    return returned if isinstance(returned, str) else json.dumps(returned, default=str)


async def _awaited(returned: Any) -> Any:
    return await returned
