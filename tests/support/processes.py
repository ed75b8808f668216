"""Whether processes have ended, asked while they do."""

import psutil


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
