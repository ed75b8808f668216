"""Ties the life of a process to its parent's: `python parent_death.py PARENT_PID COMMAND...` becomes COMMAND, which the
kernel kills when the thread that started it ends. A small separate program, because the alternative, a `preexec_fn`,
runs Python between fork and exec and can deadlock in a process with threads.

The death signal belongs to the *thread* that forks, not to its process: start tethered processes in a thread that
lives as long as the process does. Grandchildren are not tethered; they carry the run's mark (`leftovers.py`).

Only the standard library is imported: it runs isolated and starts in some hundredths of a second.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tethered(command: Sequence[str]) -> list[str]:
    """Return a command line that runs `command` and dies with the thread of this process that starts it.

    The process keeps its id: there is no process in between.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(arguments: Sequence[str]) -> None:
    """Become the command, tethered to the parent; exit at once if that is gone already."""
    parent, command = int(arguments[0]), list(arguments[1:])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # It may have died before the call above, and then no signal comes.
    if os.getppid() != parent:
        sys.exit(f"the parent process {parent} is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
