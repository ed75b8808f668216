"""A model that may run Python: a block of code in its turn is run, and what it prints is the user's next turn.

    spec.rollout.generate: python_sandbox:generate

Its directory must be on PYTHONPATH where the job runs. The code runs in a process of its own, in an empty directory,
without the run's environment, and with limits of time, memory and output. It is not kept from the network or from files
that anybody may read: give the pods a NetworkPolicy, and no secrets as files.
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

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
MOST_RUNS = 3
SECONDS = 5
MEMORY_BYTES = 512 * 2**20
MOST_SHOWN = 1000
"""characters of what a block has printed"""


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
            sys.executable, "-I", "-c", code,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={}, cwd=directory, start_new_session=True, preexec_fn=limit,
        )  # fmt: skip
        try:
            output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        except TimeoutError:
            return f"(nothing within {SECONDS} s)"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            await process.wait()
    if process.returncode in (-signal.SIGKILL, -signal.SIGXCPU):  # its time on a core was over a moment earlier
        return f"(nothing within {SECONDS} s)"
    return output.decode(errors="replace").strip()[-MOST_SHOWN:] or "(nothing)"


def limit() -> None:
    """Bound the process before its code begins: memory, time on a core, and what it may write to files."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_SHOWN * 100, MOST_SHOWN * 100))
