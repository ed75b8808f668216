"""The run directories below a directory of a volume. It only reads, and looks at no more than it is told.

A run directory is not entered: what is inside belongs to it. Names that begin with a dot do not count, as in the
operator's volume; those of interrupted prunes are listed apart.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rljob_cli.volume.extent import Budget, extent
from rljob_cli.volume.run_directory import RunOnDisk, is_run, looked_at

LEFTOVER = re.compile(r"\.rljob-pruned-[0-9a-f]{16}")
"""what a prune renames before it deletes"""


@dataclass(frozen=True, slots=True)
class Leftover:
    """What an interrupted prune has left."""

    path: Path
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The runs below a directory."""

    directory: Path
    runs: tuple[RunOnDisk, ...]
    """the largest first"""
    leftovers: tuple[Leftover, ...]
    gaps: tuple[str, ...]
    """what was not looked at, and why"""

    @property
    def num_bytes(self) -> int:
        """Of all that is listed."""
        return sum(run.extent.num_bytes for run in self.runs) + sum(each.num_bytes for each in self.leftovers)


def listing(directory: Path, depth: int, budget: Budget, now: float) -> Listing:
    """Return the runs in a directory and at most `depth` levels below it, at `now` [unix s]."""
    gaps: list[str] = []
    places = [*_places(directory, depth, budget, gaps)]
    runs, leftovers = [], []
    for place in places:
        try:
            if LEFTOVER.fullmatch(place.name):
                leftovers.append(Leftover(place, extent(place, budget).num_bytes))
            else:
                runs.append(looked_at(place, budget, now))
        except FileNotFoundError:  # deleted meanwhile
            continue
    gaps += [f"{run.path}: {run.extent.gap}" for run in runs if run.extent.gap]
    runs.sort(key=lambda run: (-run.extent.num_bytes, run.path))
    return Listing(directory, tuple(runs), tuple(leftovers), tuple(gaps))


def _places(directory: Path, depth: int, budget: Budget, gaps: list[str]) -> Iterator[Path]:
    """Yield directories of runs and leftovers; add to `gaps` what was not looked at."""
    device = directory.lstat().st_dev
    too_deep = 0
    todo = deque([(directory, 0)])
    while todo:
        current, level = todo.popleft()
        if LEFTOVER.fullmatch(current.name) or is_run(current):
            yield current
            continue
        if level == depth:
            too_deep += 1
            continue
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            gaps.append(f"{current}: {error.strerror}")
            continue
        for entry in entries:
            if not budget.spend():
                gaps.append(f"{current}: the limit of entries or seconds was reached")
                return
            if _may_be_entered(entry, device):
                todo.append((Path(entry.path), level + 1))
    if too_deep:
        gaps.append(f"{directory}: directories {depth} levels down, {too_deep} of them; --depth looks deeper")


def _may_be_entered(entry: "os.DirEntry[str]", device: int) -> bool:
    if entry.name.startswith(".") and not LEFTOVER.fullmatch(entry.name):
        return False
    try:
        is_directory = entry.is_dir(follow_symlinks=False)
        return is_directory and entry.stat(follow_symlinks=False).st_dev == device
    except OSError:  # deleted meanwhile
        return False
