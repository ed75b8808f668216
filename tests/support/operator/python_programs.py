"""Starts Python programs: as forks of a process that has imported the operator, or in interpreters of their own.

A fork starts without the 3 s of imports: a test of crashes starts thirty operators, and that was half of its time.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from pathlib import Path

Program = ForkServerProcess | SpawnProcess
Start = Callable[[Sequence[str], Path], Program]
"""(`-m MODULE ARGUMENTS` or `FILE ARGUMENTS`, file to append the output to)"""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["rljob_operator.__main__", "rljob_operator.webhook.__main__"])
INTERPRETERS = multiprocessing.get_context("spawn")


def forked(command: Sequence[str], output: Path) -> Program:
    """Start it as a fork, with the environment of now: that of the server may be older."""
    return _started(FORKS, command, output)


def spawned(command: Sequence[str], output: Path) -> Program:
    """Start it in a new interpreter, as a container does: for measurements."""
    return _started(INTERPRETERS, command, output)


def _started(context: ForkServerContext | SpawnContext, command: Sequence[str], output: Path) -> Program:
    output.touch()  # who reads the log need not wait for the process
    process = context.Process(target=_run, args=(list(command), str(output), dict(os.environ)))
    process.start()
    return process


def _run(command: list[str], output: str, environ: dict[str, str]) -> None:
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.clear()
    os.environ.update(environ)
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.modules.pop(f"{command[1]}.__main__", None)  # it was imported to have what it imports; now it is to run
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
