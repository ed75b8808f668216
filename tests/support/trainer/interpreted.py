"""Processes where Triton interprets kernels: in processes of their own, since Triton decides at its import."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from rljob_trainer.processes.ports import free_ports


class Interpreted:
    """Two processes at most, which take seconds to start; the second one starts when ranks need it."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function(*args)` returns there."""
        return self._pool.submit(function, *args).result(timeout=120)

    def run_ranks(self, scenario: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what `scenario(rank, world_size, port, *args)` returns on two ranks, which must meet."""
        port, _ = free_ports("127.0.0.1")
        futures = [self._pool.submit(scenario, rank, 2, port, *args) for rank in range(2)]
        return [future.result(timeout=120) for future in futures]


@contextmanager
def interpreted() -> Iterator[Interpreted]:
    """Let Triton interpret in processes that end with the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield Interpreted(pool)
