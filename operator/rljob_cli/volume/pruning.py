"""Deletes runs that are old and not in use, or all of such a run but its last checkpoint.

    listing ─► pruning: which ones, and why not the others ─► delete: looks again, renames, deletes

Renamed first: an interrupted deletion leaves a directory that does not count as a run; the next prune deletes it.
Directories are opened one inside the other without following links, so that a user of the volume cannot lead a
deletion out of it.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from rljob_api.control import CORES
from rljob_cli.run.rundir import RunLockedError, kept_free
from rljob_cli.terminal.formats import age
from rljob_cli.volume.extent import Budget, extent
from rljob_cli.volume.listing import LEFTOVER, Listing
from rljob_cli.volume.run_directory import RunOnDisk, looked_at, opened
from rljob_trainer.rundir.names import (
    CHECKPOINT,
    CHECKPOINT_MANIFEST,
    CHECKPOINTS,
    ROLLOUTS,
    SET_ASIDE,
    step_in,
)

NO_CHECKPOINTS = ("saving-", "removing-", "damaged-")
"""beginnings of names beside the checkpoints that stand for none to resume from"""
LARGEST_MANIFEST = 2**24
"""of a checkpoint [bytes]"""


class KeptError(RuntimeError):
    """Something was not deleted, or not wholly; the text says why."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which runs are deleted, and what of them."""

    older_than_s: float
    """since their last change"""
    keeps_last: bool
    """whether their last checkpoint, logs and records stay"""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A run that is to be deleted, or a part of it."""

    run: RunOnDisk
    paths: tuple[Path, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A run that stays."""

    run: RunOnDisk
    reason: str


@dataclass(frozen=True, slots=True)
class Pruning:
    """What is to be deleted, and what is not."""

    listing: Listing
    rule: Rule
    doomed: tuple[Doomed, ...]
    kept: tuple[Kept, ...]

    @property
    def num_bytes(self) -> int:
        """Of all that is to be deleted."""
        return sum(each.num_bytes for each in self.doomed) + sum(each.num_bytes for each in self.listing.leftovers)


def pruning(listing: Listing, rule: Rule, budget: Callable[[], Budget], now: float) -> Pruning:
    """Return what a prune deletes at `now` [unix s]; `budget` is how much may be looked at, for each run."""
    doomed, kept = [], []
    for run in listing.runs:
        if reason := reason_to_keep(run, listing.directory, rule, now):
            kept.append(Kept(run, reason))
            continue
        try:
            found = doomed_of(run, rule, budget())
        except OSError as error:
            kept.append(Kept(run, f"cannot be read: {error}"))
            continue
        if found.paths:
            doomed.append(found)
        else:
            kept.append(Kept(run, "has nothing but its last checkpoint"))
    return Pruning(listing, rule, tuple(doomed), tuple(kept))


def reason_to_keep(run: RunOnDisk, root: Path, rule: Rule, now: float) -> str:
    """Return why a run must stay; empty: it may be deleted."""
    unused_s = now - run.extent.changed
    if run.path == root:
        return "is the directory itself: name the one above it"
    if run.in_use:
        return f"is in use by {run.in_use}"
    if run.extent.gap:
        return f"was not seen whole: {run.extent.gap}"
    if len(run.extent.beats) > 1:
        return "has another run inside"
    if unused_s < rule.older_than_s:
        return f"was changed {age(unused_s)} ago"
    return ""


def doomed_of(run: RunOnDisk, rule: Rule, budget: Budget) -> Doomed:
    """Return what of a run is to be deleted."""
    if not rule.keeps_last:
        return Doomed(run, (run.path,), run.extent.num_bytes)
    paths = tuple(_all_but_the_last(run.path))
    return Doomed(run, paths, sum(_size(path, budget) for path in paths))


def _all_but_the_last(directory: Path) -> Iterator[Path]:
    """Yield what a run can be resumed and reported without. Checkpoints newer than the last whole one stay, too."""
    for path in _children(directory):
        if path.name in (ROLLOUTS, CORES) or path.name.startswith(SET_ASIDE) or LEFTOVER.fullmatch(path.name):
            yield path
    beside = _children(directory / CHECKPOINTS)
    last = max((step_in(path.name) for path in beside if CHECKPOINT.fullmatch(path.name) and is_whole(path)), default=0)
    for path in beside:
        is_older = CHECKPOINT.fullmatch(path.name) and step_in(path.name) < last
        if is_older or path.name.startswith(NO_CHECKPOINTS) or LEFTOVER.fullmatch(path.name):
            yield path


def is_whole(checkpoint: Path) -> bool:
    """Return whether a checkpoint has all files that it names. Their digests are for `rljob inspect`."""
    try:
        with opened(checkpoint / CHECKPOINT_MANIFEST) as file:
            said: Any = json.loads(file.read(LARGEST_MANIFEST))
        return said["step"] == step_in(checkpoint.name) and all(
            (checkpoint / name).lstat().st_size for name in said["files"]
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _children(directory: Path) -> list[Path]:
    if directory.is_symlink() or not directory.is_dir():
        return []
    return sorted(directory.iterdir())


def _size(path: Path, budget: Budget) -> int:
    is_directory = path.is_dir() and not path.is_symlink()
    return extent(path, budget).num_bytes if is_directory else path.lstat().st_size


def carry_out(plan: Pruning, budget: Callable[[], Budget], clock: Callable[[], float]) -> tuple[list[Path], list[str]]:
    """Delete what is to be deleted; return the paths of runs and leftovers that are gone, and why others are not."""
    root = plan.listing.directory
    deleted, failures = [], []
    for each in plan.doomed:
        try:
            delete(each, root, plan.rule, budget(), clock())
            deleted.append(each.run.path)
        except KeptError as error:
            failures.append(str(error))
    for leftover in plan.listing.leftovers:
        try:
            remove(leftover.path, root)
            deleted.append(leftover.path)
        except (KeptError, OSError) as error:
            failures.append(str(error))
    return deleted, failures


def delete(doomed: Doomed, root: Path, rule: Rule, budget: Budget, now: float) -> None:
    """Delete a run that may still be deleted, or the same part of it. Raises KeptError, with the path."""
    path = doomed.run.path
    try:
        found = looked_at(path, budget, now)
        reason = reason_to_keep(found, root, rule, now)
        if found.identity != doomed.run.identity:
            reason = "is another directory now"
        if reason:
            raise KeptError(f"{path}: {reason}")
        with kept_free(path):
            for each in doomed.paths:
                remove(each, root, doomed.run.identity if each == path else None)
    except (OSError, RunLockedError) as error:
        raise KeptError(f"{path}: {error}") from error


def remove(path: Path, root: Path, identity: tuple[int, int] | None = None) -> None:
    """Rename what lies below the root, and delete it. Raises KeptError if a part is left, OSError if all is."""
    name = f".rljob-pruned-{secrets.token_hex(8)}"
    with _opened(root, path.parent.relative_to(root)) as parent:
        found = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        if identity not in (None, (found.st_dev, found.st_ino)):
            raise KeptError(f"{path}: is another directory now")
        os.rename(path.name, name, src_dir_fd=parent, dst_dir_fd=parent)
        _delete_in(parent, name, path)


def _delete_in(parent: int, name: str, was: Path) -> None:
    left: list[OSError] = []

    def failed(_: object, __: object, raised: tuple[Any, Any, Any]) -> None:
        if not isinstance(raised[1], FileNotFoundError):  # another prune deletes it, too
            left.append(raised[1])

    try:
        os.unlink(name, dir_fd=parent)
    except OSError:  # a directory
        shutil.rmtree(name, onerror=failed, dir_fd=parent)
    if left:
        raise KeptError(f"{was}: not all could be deleted: {left[0].strerror}; the rest is in {was.parent / name}")


@contextmanager
def _opened(root: Path, inside: PurePath) -> Iterator[int]:
    """Open a directory below the root; a link on the way is an OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(root, flags)
    try:
        for part in inside.parts:
            deeper = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)
