"""Cleans up after a supervisor that was killed: `python -m rljob_trainer.processes.guard SUPERVISOR_PID RUN DIRECTORY`.

`rljob run` starts it beside the driver. It sleeps until the supervisor is gone and removes what is left of the run. It
inherits the supervisor's lock on the directory: the run cannot be started again while it cleans, because the lock is
free only when both are gone.
"""

import logging
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_trainer.processes.leftovers import clean


def guard_command(run: str, directory: Path) -> list[str]:
    """Return the command line of a guard for this process."""
    return [sys.executable, "-m", "rljob_trainer.processes.guard", str(os.getpid()), run, str(directory)]


def main(arguments: Sequence[str]) -> None:
    """Wait for the end of a process, then clean its run."""
    pid, run, directory = int(arguments[0]), arguments[1], Path(arguments[2])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s guard %(message)s")
    await_end(pid)
    clean(run, directory, grace_s=0.5)


def await_end(pid: int) -> None:
    """Return when the process, which may be gone already, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    # The parent may have died, and its number been given to another process, before the call above.
    if os.getppid() == pid:
        select.select([descriptor], [], [])
    os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
