"""What lies in a directory of a volume: bytes, the last change, drivers at work. It only reads.

Users of a volume may put there what they want: no link is followed, and no other file system is entered.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_trainer.rundir import fence


class Budget:
    """How much of a volume is looked at."""

    def __init__(self, entries: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries = entries
        self._clock = clock
        self._until = clock() + seconds

    def spend(self) -> bool:
        """Count an entry of a directory; return whether it may be looked at."""
        self._entries -= 1
        return not self.is_spent

    @property
    def is_spent(self) -> bool:
        """Whether nothing more may be looked at."""
        return self._entries < 0 or self._clock() >= self._until


@dataclass(frozen=True, slots=True)
class Extent:
    """What lies in a directory."""

    num_bytes: int
    """of files; one with several names counts once"""
    changed: float
    """last change of a file or directory [unix s]"""
    beats: tuple[float, ...] = ()
    """when the drivers of its runs touched their files last, the newest last [unix s]"""
    gap: str = ""
    """why not everything was seen; empty: everything was"""


def extent(directory: Path, budget: Budget) -> Extent:
    """Return what lies in a directory. Raises OSError if it is not there."""
    top = directory.lstat()
    num_bytes, changed, gap = 0, top.st_mtime, ""
    beats: list[float] = []
    seen: set[int] = set()
    todo = [directory]
    while todo:
        current = todo.pop()
        try:
            entries = [*os.scandir(current)]
        except FileNotFoundError:  # an active run deletes, too
            continue
        except OSError as error:
            gap = f"{current} cannot be read: {error.strerror}"
            continue
        for entry in entries:
            if not budget.spend():
                return Extent(num_bytes, changed, tuple(sorted(beats)), "the limit of entries or seconds was reached")
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if found.st_dev != top.st_dev:
                gap = f"{entry.path} is another file system"
                continue
            changed = max(changed, found.st_mtime)
            if entry.is_dir(follow_symlinks=False):
                todo.append(Path(entry.path))
            elif found.st_ino not in seen:
                num_bytes += found.st_size
                if found.st_nlink > 1:
                    seen.add(found.st_ino)
            if entry.name == fence.FILE_NAME:
                beats.append(found.st_mtime)
    return Extent(num_bytes, changed, tuple(sorted(beats)), gap)
