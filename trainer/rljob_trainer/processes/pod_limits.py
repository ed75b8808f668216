"""The cores and the memory that this process may use: the machine's, less what the limits of its pod forbid."""

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


def cores(usable: int | None = None, cgroup: Path = CGROUP) -> int:
    """Return how many cores there are: at least 1. `usable` are those of the scheduler's mask; None: it is read.

    A limit of a pod is a quota of time, which the mask does not show; parts of a core count as one.
    """
    usable = len(os.sched_getaffinity(0)) if usable is None else usable
    quota, period, *_ = (*_words(cgroup / "cpu.max"), *_words(cgroup / V1[0]), *_words(cgroup / V1[1]), "", "")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return max(1, usable)  # no limit: `max`, or -1
    return max(1, min(usable, math.ceil(int(quota) / int(period))))


def memory_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Return how much memory there is."""
    total = next(
        int(line.split()[1]) << 10 for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:")
    )
    limits = (_words(cgroup / "memory.max"), _words(cgroup / "memory/memory.limit_in_bytes"))
    return min(total, *(int(words[0]) for words in limits if words and words[0].isdecimal()), total)


def _words(file: Path) -> list[str]:
    """Return the words of a file; none where there is no such file."""
    try:
        return file.read_text().split()
    except OSError:
        return []
