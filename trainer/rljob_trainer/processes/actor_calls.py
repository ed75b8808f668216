"""Calls of Ray actors that mypy checks: Ray's own handles take any name and any arguments."""

from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")


def ask(actor: Any, method: Callable[Concatenate[A, P], R], *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
    """Call a method of the actor's class, such as `EngineServer.start`; return Ray's reference to the answer."""
    reference: Awaitable[R] = getattr(actor, method.__name__).remote(*args, **kwargs)
    return reference
