"""Runs learner ranks as plain processes over gloo, without Ray, each with one thread and under a deadline.

Functions that run in ranks live in `learner_scenarios.py`, so that the processes can import them.
"""

import io
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from rljob_trainer.processes.ports import free_ports

PRELOADED = ["rljob_trainer.learners.rank.rank"]
"""imported once, in the server that the ranks are forked from: torch and Megatron take seconds"""

_ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..")  # noqa: PTH118, PTH120  # for an environment variable


def run_ranks(scenario: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 90.0) -> list[Any]:
    """Return what `scenario(rank, world_size, port, *args)` returns on each rank; fail as soon as one rank fails."""
    context = _context()
    port, _ = free_ports("127.0.0.1")
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=_run, args=(pipes[rank][1], scenario, rank, world_size, port, args), daemon=True)
        for rank in range(world_size)
    ]
    try:
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        return _collect([receiver for receiver, _ in pipes], timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def _collect(receivers: list[Connection], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        waiting = {receiver: rank for rank, receiver in enumerate(receivers) if rank not in results}
        ready = multiprocessing.connection.wait(list(waiting), timeout_s)
        assert ready, f"ranks {sorted(waiting.values())} did not answer in {timeout_s} s"
        for receiver in ready:
            assert isinstance(receiver, Connection)
            ok, value = torch.load(io.BytesIO(receiver.recv_bytes()), weights_only=False)
            assert ok, f"rank {waiting[receiver]} failed:\n{value}"
            results[waiting[receiver]] = value
    return [results[rank] for rank in range(len(receivers))]


def _context() -> Any:
    """Return a fork server that can import our packages wherever the tests were started from."""
    folders = [os.path.join(_ROOT, name) for name in ("crds", "trainer", "tests")]  # noqa: PTH118
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(sender: Connection, scenario: Callable[..., Any], rank: int, world_size: int, port: int, args: Any) -> None:
    try:
        result = (True, scenario(rank, world_size, port, *args))
    except BaseException:  # noqa: BLE001  # the top of a process: the test shows it
        result = (False, traceback.format_exc())
    buffer = io.BytesIO()  # plain bytes: pickled tensors would refer to memory of this process, which ends now
    torch.save(result, buffer)
    sender.send_bytes(buffer.getvalue())
