"""Runs a program of the image once for each trajectory, in a separate directory.

`command_process.py` stands between driver and program: it limits and kills the program and all that it starts.
"""

import asyncio
import json
import logging
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rljob_api.credentials import is_secret
from rljob_api.sections import Agent
from rljob_trainer.agents.outcome import Failed, Outcome, Returned, late
from rljob_trainer.agents.workers import without_proxy
from rljob_trainer.conversations.errors import GenerateError
from rljob_trainer.private_files import appended
from rljob_trainer.processes.kept_process import LOG_FOLLOWS

log = logging.getLogger(__name__)

GRACE_S = 30.0
"""beside its time limit, for the end of a program to be told [s]"""
RESULT_BYTES = 65536
"""longest result that is read"""
MOST_SHOWN = 4000
"""characters of the output in a message"""
LINE_LIMIT = 1 << 20
"""of the line that says how a program ended [bytes]"""
TASK, RESULT = "task.json", "result.json"
TASK_VARIABLE, RESULT_VARIABLE = "RLJOB_TASK", "RLJOB_RESULT"
EXPECTED = 'one of {"reward": NUMBER}, {"text": TEXT}, {}'


class Commands:
    """The programs that run. Belongs to one asyncio loop."""

    def __init__(self, agent: Agent, log_file: Path) -> None:
        self.name = f"rollout.agent.command {agent.command[0]}"
        self._agent, self._log = agent, log_file
        self._under_way: set[asyncio.Task[Outcome]] = set()

    def check(self, alive: Callable[[], None]) -> None:
        """Raise GenerateError if the program is not there."""
        if program(self._agent.command[0], os.environ) is None:
            raise GenerateError(f"{self.name}: is not a program that can be executed here")

    async def call(self, arguments: Sequence[Any]) -> Outcome:
        """Return how the program ended; it gets task, base URL and key."""
        task = asyncio.ensure_future(self._ran(*arguments))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await task

    async def close(self) -> None:
        """Kill all programs."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _ran(self, task: Mapping[str, Any], base_url: str, api_key: str) -> Outcome:
        place = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rljob-agent-"))
        try:
            (place / "work").mkdir()
            (place / TASK).write_text(json.dumps(task, default=str))
            said = await self._said(place, base_url, api_key)
            return self._outcome(said, place)
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    async def _said(self, place: Path, base_url: str, api_key: str) -> Mapping[str, Any] | None:
        """Return what `command_process` says; None: it was killed, or is late."""
        agent = self._agent
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "rljob_trainer.agents.command_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(os.environ, agent.secret_env, place, base_url, api_key),
            limit=LINE_LIMIT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        setup = {
            "argv": [program(agent.command[0], os.environ) or agent.command[0], *agent.command[1:]],
            "directory": str(place / "work"),
            "task": str(place / TASK),
            "timeout_s": agent.timeout_seconds,
            "memory_bytes": agent.memory_mib << 20,
        }
        try:
            process.stdin.write(json.dumps(setup).encode() + b"\n")
            async with asyncio.timeout(agent.timeout_seconds + GRACE_S):
                line = await process.stdout.readline()
            return json.loads(line) if line else None
        except (TimeoutError, ConnectionError, ValueError):
            return None
        finally:
            process.stdin.close()  # kills the program, if it runs
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await process.wait()
            if process.returncode is None:
                process.kill()  # and the kernel the program with it

    def _outcome(self, said: Mapping[str, Any] | None, place: Path) -> Outcome:
        if said is None:
            return Failed("its process was killed")
        with appended(self._log) as written:
            written.write(said["output"].encode())
        if said["late"]:
            return late(self._agent.timeout_seconds)
        if said["code"] != 0:
            ended = "did not start" if said["code"] is None else f"ended with {said['code']}"
            return Failed(f"{ended}{LOG_FOLLOWS}\n{said['output'][-MOST_SHOWN:]}")
        return result(place / RESULT, said["last_line"])


def environment(
    environ: Mapping[str, str], secret_env: Collection[str], place: Path, base_url: str, api_key: str
) -> dict[str, str]:
    """Return the variables of a program: ours without secrets, with its model, task and directories."""
    kept = {name: value for name, value in environ.items() if not is_secret(name, value) or name in secret_env}
    here = {name: absolute(kept[name]) for name in ("PATH", "PYTHONPATH") if name in kept}
    return {
        **kept,
        **here,
        **without_proxy(environ),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": api_key,
        "TMPDIR": str(place / "work"),
        TASK_VARIABLE: str(place / TASK),
        RESULT_VARIABLE: str(place / RESULT),
    }


def absolute(path: str) -> str:
    """Return a search path whose entries mean the same in another directory."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in path.split(os.pathsep) if entry)


def program(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the program that a name stands for, absolute; None: there is none."""
    found = shutil.which(name, path=environ.get("PATH"))
    # Not resolved: the python of a virtual environment is a link.
    return None if found is None else str(Path(found).absolute())


def result(file: Path, last_line: str) -> Outcome:
    """Return what a program says of itself: in its file, else in its last line, else nothing."""
    try:
        with file.open("rb") as opened:
            content = opened.read(RESULT_BYTES + 1)
    except FileNotFoundError:
        found = _parsed(last_line) if last_line.startswith("{") else None
        return Returned() if found is None else found
    except OSError as error:
        return Failed(f"its {RESULT_VARIABLE} cannot be read: {error}")
    read = _parsed(content.decode(errors="replace")) if len(content) <= RESULT_BYTES else None
    return Failed(f"has written no result to {RESULT_VARIABLE}; {EXPECTED} is expected") if read is None else read


def _parsed(text: str) -> Outcome | None:
    """Return the result that a text is; None: it is none."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match given:
        case {"reward": bool()}:
            return None
        case {"reward": int() | float() as reward}:
            return _reward(reward)
        case {"text": str(said)}:
            return Returned(text=said)
        case dict() if not given:
            return Returned()
        case _:
            return None


def _reward(given: float) -> Outcome | None:
    try:
        reward = float(given)
    except OverflowError:
        return None
    return Returned(reward=reward) if math.isfinite(reward) else None
