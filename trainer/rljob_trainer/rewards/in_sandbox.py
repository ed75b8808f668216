"""Calls a reward function inside of a sandbox, and says what it has given as `function_worker.py` does."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from rljob_trainer.processes.function_worker import Refused, Setup, failed, judged, load


def call(setup: Sequence[Any], arguments: Sequence[Any] | None) -> Mapping[str, Any]:
    """Return the facts of an answer; without arguments whether the function can be called, or why not."""
    given = Setup(*setup)
    try:
        function = load(given)
    except Refused as error:
        return {"refused": str(error)}
    if arguments is None:
        return {"ready": True, "is_async": False}
    try:
        value = function(*arguments)
        return judged(given, arguments, asyncio.run(_awaited(value)) if isinstance(value, Awaitable) else value)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # any error is the answer
        return failed(error)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
