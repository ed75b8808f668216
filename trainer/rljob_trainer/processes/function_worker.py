"""The process that runs a user's function: `python -u function_worker.py SOCKET`, started by `function_workers.py`.

    setup ──► ready or refused        what to load, where to find it, its limits
    call  ──► answer                  one at a time; an `async def` function gets further calls while it awaits

Requests are pickles from the trainer, answers JSON: nothing that a user's function makes is unpickled there. What the
function prints goes to the log that standard output is. Only the standard library is imported, before the function.
"""

import asyncio
import faulthandler
import importlib
import inspect
import json
import math
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

MOST_SHOWN = 100
"""characters of a value that is not a number"""
LONGEST = 50_000
"""of a text that is answered, which `answers.py` limits [characters]"""
TRACE_SIGNAL = signal.SIGUSR1
"""writes the stacks of all threads to the log, even if the process hangs"""

CALLERS = (__file__, importlib.__file__, "<frozen importlib")
"""begin the names of the files through which the user's code is called"""

Call = tuple[str, tuple[Any, ...]]
"""random number of the call, and arguments"""
Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is for."""

    function: str
    """`module:function`"""
    parameters: tuple[str, ...]
    """what it is called with"""
    by_group: bool
    """whether it returns a list, of as many numbers as the second argument has responses"""
    timeout_s: float
    memory_bytes: int
    returns_text: bool = False
    """whether it returns a text instead: a tool does"""
    secret_env: tuple[str, ...] = ()
    """variables that it gets although they are named like secrets"""
    returns_any: bool = False
    """whether it may return a number, a text or None: an agent may"""
    field: str = "reward.function"
    """that names it, for messages"""
    role: str = "a reward"
    """what it is, for messages"""


class Refused(Exception):  # noqa: N818  # a verdict on the manifest
    """The function cannot be used; the text says why."""


def main(path: str) -> None:
    """Serve until the trainer closes the connection."""
    faulthandler.enable()
    faulthandler.register(TRACE_SIGNAL, all_threads=True)
    connection = connect(path)
    # A child of the function must not answer for us when it returns from the function as well.
    os.register_at_fork(after_in_child=connection.close)
    search_path, *given = pickle.loads(connection.recv_bytes())
    setup = Setup(*given)
    sys.path[:] = search_path
    limit(setup.memory_bytes)
    try:
        function = load(setup)
    except Refused as error:
        return send(connection, refused=str(error)[:LONGEST])
    is_async = inspect.iscoroutinefunction(function)
    send(connection, ready=True, is_async=is_async)
    try:
        if is_async:
            asyncio.run(serve_together(connection, setup, function))
        else:
            serve(connection, setup, function)
    except (EOFError, OSError):
        return None  # the trainer is gone, or this is a child that the function has forked
    return None


def connect(path: str) -> Connection:
    """Connect to a unix socket."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
        return Connection(channel.detach())


def limit(memory_bytes: int) -> None:
    """Bound the data of this process and of each of its children. (RLIMIT_AS would count address space that is only
    reserved, of which CUDA takes terabytes.) No core dumps: they would fill the disk.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def load(setup: Setup) -> Callable[..., Any]:
    """Return the function; raise Refused if there is none, or if it cannot be called in the way rewards are."""
    name, wanted, field = setup.function, ", ".join(setup.parameters), setup.field
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise Refused(f"{field} {name!r}: `module:function` is wanted")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        log_traceback(error)
        reason = f"{type(error).__name__}: {error}"
        raise Refused(f"{field} {name}: cannot import {module_name}: {reason}") from error
    function: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(function):
        names = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise Refused(f"{field} {name}: {module_name} has no function {attribute}; it has {names}")
    try:
        inspect.signature(function).bind(*setup.parameters)
    except TypeError as error:
        raise Refused(f"{name} takes {inspect.signature(function)}; {setup.role} takes ({wanted}): {error}") from error
    except ValueError as error:
        raise Refused(f"{name} has no signature that can be read; {setup.role} takes ({wanted})") from error
    return function


def serve(connection: Connection, setup: Setup, function: Callable[..., Any]) -> None:
    """Answer one call after the other. The trainer watches the time: nothing here could stop the function."""
    while True:
        number, arguments = received(connection)
        try:
            facts = judged(setup, arguments, function(*arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001  # any error is the answer
            facts = failed(error)
        send(connection, number=number, **facts)


async def serve_together(connection: Connection, setup: Setup, function: Callable[..., Any]) -> None:
    """Answer calls that run at the same time, each with its own time limit."""
    loop, ended = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    under_way: set[asyncio.Task[None]] = set()

    async def answer(number: str, arguments: tuple[Any, ...]) -> None:
        try:
            async with asyncio.timeout(setup.timeout_s) as timer:
                value = await function(*arguments)
            facts = judged(setup, arguments, value)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # any error is the answer
            facts = {"late": True} if isinstance(error, TimeoutError) and timer.expired() else failed(error)
        send(connection, number=number, **facts)

    def begin() -> None:
        try:
            task = loop.create_task(answer(*received(connection)))
        except (EOFError, OSError) as error:
            loop.remove_reader(connection.fileno())
            ended.set_exception(error)
            return
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    loop.add_reader(connection.fileno(), begin)
    await ended


def received(connection: Connection) -> Call:
    call: Call = pickle.loads(connection.recv_bytes())
    return call


def judged(setup: Setup, arguments: Sequence[Any], value: Any) -> Reply:
    """Return the scores that a value stands for, or what is wrong with it; a text as it is, where one is wanted."""
    if setup.returns_any and (value is None or isinstance(value, str)):
        return {"nothing": True} if value is None else {"text": value[:LONGEST]}
    if setup.returns_text:
        return {"text": str(value)[:LONGEST]}
    if not setup.by_group:
        score = number(value)
        return {"returned": shown(value)} if score is None else {"scores": [score]}
    if isinstance(value, str | bytes | dict):
        return {"returned": shown(value)}
    try:
        values = list(value)
    except TypeError:
        return {"returned": shown(value)}
    if len(values) != len(arguments[1]):
        return {"length": len(values)}
    scores = [number(each) for each in values]
    wrong = [each for each, score in zip(values, scores, strict=True) if score is None]
    return {"returned": shown(wrong[0])} if wrong else {"scores": scores}


def number(value: Any) -> float | None:
    """Return the value as a finite number, or None; a NaN would quietly spoil the advantages of its whole group."""
    if isinstance(value, str):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def shown(value: Any) -> str:
    return repr(value)[:MOST_SHOWN]


def failed(error: BaseException) -> Reply:
    """Return what an exception says; where it came from goes to the log."""
    log_traceback(error)
    return {"raised": f"{type(error).__name__}: {error}"[:LONGEST], "memory": isinstance(error, MemoryError)}


def log_traceback(error: BaseException) -> None:
    """Write where an exception came from, without the calls that lead to the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(CALLERS):
        trace = trace.tb_next
    traceback.print_exception(error.with_traceback(trace))


def send(connection: Connection, **facts: Any) -> None:
    connection.send_bytes(json.dumps(facts).encode())


if __name__ == "__main__":
    main(sys.argv[1])
