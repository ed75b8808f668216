"""The tool `python`: runs code in a new interpreter, in an empty directory and without the run's environment.

Time and memory are limited as those of every tool. The sandbox of `spec.rollout.tools` keeps the code from the network,
files and processes of the run; without one it can do what the run can.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

MOST_SHOWN = 4000
"""characters of what the code has printed; the end is kept, where errors are"""
MOST_WRITTEN = 2**26
"""bytes of one file"""


def python(code: str) -> str:
    """
    Run Python code in a new interpreter and return what it prints.

    Args:
        code: the code; only what it prints is returned
    """
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={},
            cwd=directory,
            start_new_session=True,
            preexec_fn=limit,
        )
        try:
            process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - 4 * MOST_SHOWN))
        said = printed.read().decode(errors="replace").strip()
    return said[-MOST_SHOWN:] or "(nothing was printed)"


def limit() -> None:
    """Bound the files that the code may write, of which what it prints is one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, MOST_WRITTEN))
