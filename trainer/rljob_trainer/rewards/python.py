"""A user's own function, `module:function`, called with (question, response, label, metadata); plain or `async def`.

The functions of a batch that are `async` run together, so that a slow judge is waited for once.
"""

import asyncio
import importlib
import inspect
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rljob_trainer.rewards.errors import RewardError
from rljob_trainer.rewards.function import Response, RewardFunction

PARAMETERS = ("question", "response", "label", "metadata")


def python_reward(name: str) -> RewardFunction:
    """Load the function and return it as a reward; raise RewardError if it cannot be called in this way."""
    function = _load(name)
    try:
        inspect.signature(function).bind(*PARAMETERS)
    except TypeError as error:
        raise RewardError(
            f"{name} takes {inspect.signature(function)}; a reward takes ({', '.join(PARAMETERS)}): {error}"
        ) from error
    except ValueError as error:
        raise RewardError(f"{name} does not tell its parameters; a reward takes ({', '.join(PARAMETERS)})") from error
    if inspect.iscoroutinefunction(function):
        return lambda responses: asyncio.run(_together(name, function, responses))
    return lambda responses: [_score(name, function, response) for response in responses]


def _load(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise RewardError(f"reward.function {name!r}: `module:function` is wanted")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise RewardError(f"reward.function {name}: cannot import {module_name}: {reason}") from error
    function: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(function):
        names = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise RewardError(f"reward.function {name}: {module_name} has no function {attribute}; it has {names}")
    return function


def _score(name: str, function: Callable[..., Any], response: Response) -> float:
    try:
        value = function(*_arguments(response))
    except (Exception, SystemExit) as error:
        raise _failure(name, response, error) from error
    return _number(name, response, value)


async def _together(
    name: str, function: Callable[..., Coroutine[Any, Any, Any]], responses: Sequence[Response]
) -> list[float]:
    return list(await asyncio.gather(*(_score_async(name, function, response) for response in responses)))


async def _score_async(name: str, function: Callable[..., Coroutine[Any, Any, Any]], response: Response) -> float:
    try:
        value = await function(*_arguments(response))
    except (Exception, SystemExit) as error:
        raise _failure(name, response, error) from error
    return _number(name, response, value)


def _arguments(response: Response) -> tuple[Any, ...]:
    return response.prompt.question, response.text, response.prompt.label, response.prompt.metadata


def _failure(name: str, response: Response, error: BaseException) -> RewardError:
    return RewardError(f"{name} failed on prompt {response.prompt.uid}: {type(error).__name__}: {error}")


def _number(name: str, response: Response, value: Any) -> float:
    """Return the value as a finite number; a NaN would quietly spoil the advantages of its whole group."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, str) or not math.isfinite(number):
        raise RewardError(f"{name} returned {value!r:.100} for prompt {response.prompt.uid}; a finite number is wanted")
    return number
