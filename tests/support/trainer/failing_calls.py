"""A volume that fails for a while: calls of `os` that raise what a network file system does, and a clock of its own."""

import os
from typing import Any

import pytest

from rljob_trainer.reporting.losses import Losses
from rljob_trainer.rundir.retries import Patience
from support.trainer.synthetic_run import Clock


def failing(monkeypatch: pytest.MonkeyPatch, name: str, *errors: int) -> list[Any]:
    """Let the next calls of an `os` function fail with these errors; return the first arguments of all calls."""
    real, left, called = getattr(os, name), list(errors), []

    def call(*args: Any, **kwargs: Any) -> Any:
        called.append(args[0])
        if left:
            raise OSError(number := left.pop(0), os.strerror(number))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)
    return called


def patient(losses: Losses | None = None, longest_s: float = 600.0) -> Patience:
    """Return a patience whose pauses take no time."""
    clock = Clock()

    def pause(seconds: float) -> None:
        clock.now += seconds

    return Patience(longest_s, losses, pause=pause, clock=clock)
