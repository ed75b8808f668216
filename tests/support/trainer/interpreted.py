"""Runs functions where Triton interprets kernels: in processes of their own, since Triton decides at its import."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest


def run_interpreted(function: Callable[..., Any], *args: Any) -> Any:
    """Return what `function(*args)` returns there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *args).result(timeout=120)
