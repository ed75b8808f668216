"""A Python sandbox: runs the code block of the model's turn; the output is the next user turn.

    spec.rollout.generate: python_sandbox:generate

Its directory must be on PYTHONPATH where the job runs. The code runs in the sandbox of `spec.rollout.tools`, without
network and without files, processes or environment of the run, and with limits of time, memory and output.
"""

import asyncio
import os
import re
import resource
import signal
import sys
import tempfile
from contextlib import suppress

from rljob_trainer.conversations.conversation import Conversation
from rljob_trainer.processes.sandbox import Settings, command_line

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
MOST_RUNS = 3
SECONDS = 5
MEMORY_BYTES = 512 * 2**20
"""of each process"""
MOST_SHOWN = 1000
"""characters of what a block has printed"""
MOST_READ = 2**20
"""of it [bytes]: a block that prints more has ended"""
LIMITS = Settings(file_bytes=MOST_SHOWN * 100, processes=4)


async def generate(conversation: Conversation) -> None:
    """Run the first block of each turn, until there is none."""
    for _ in range(MOST_RUNS):
        block = BLOCK.search((await conversation.model()).text)
        if block is None:
            return
        conversation.reply({"role": "user", "content": f"It printed:\n{await printed(block[1])}"})
    await conversation.model()


async def printed(code: str) -> str:
    """Return what the code prints, or how it ended."""
    with tempfile.TemporaryDirectory() as directory:
        process = await asyncio.create_subprocess_exec(
            *command_line(LIMITS, [sys.executable, "-I", "-c", code]),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={}, cwd=directory, start_new_session=True, preexec_fn=limit,
        )  # fmt: skip
        pipe = process.stdout
        assert pipe is not None
        try:
            output = await asyncio.wait_for(read(pipe), SECONDS)
            if len(output) > MOST_READ:
                return f"(more than {MOST_READ >> 20} MiB)"
            await asyncio.wait_for(process.wait(), SECONDS)
        except TimeoutError:
            return f"(nothing within {SECONDS} s)"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            while await pipe.read(2**16):  # a pipe that is full is never closed
                continue
            await process.wait()
    if process.returncode in (-signal.SIGKILL, -signal.SIGXCPU):  # its time on a core was over a moment earlier
        return f"(nothing within {SECONDS} s)"
    return output.decode(errors="replace").strip()[-MOST_SHOWN:] or "(nothing)"


async def read(pipe: asyncio.StreamReader) -> bytes:
    """Return what comes through a pipe until it ends, or until it is too much."""
    output = bytearray()
    while len(output) <= MOST_READ and (part := await pipe.read(2**16)):
        output += part
    return bytes(output)


def limit() -> None:
    """Bound the process before its code begins: memory and time on a core."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
