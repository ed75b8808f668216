"""Removes all files of a directory that hostile code could write to. Only the standard library is imported."""

import errno
import os
import stat
from pathlib import Path


def remove_all(directory: Path, kept: frozenset[str] = frozenset()) -> None:
    """Remove all that is in a directory, at any depth and with any permissions.

    `kept` are mounts inside: they stay, with the directories that they lie in. Raises OSError if something else stays,
    and before it touches another mount. Directories are moved up before they are emptied: a path may be longer than
    the kernel takes, and a recursion deeper than Python's.
    """
    device, number = directory.stat().st_dev, 0
    ways = {str(parent) for path in kept for parent in Path(path).parents if parent.is_relative_to(directory)}
    stays = kept | ways
    for way in sorted(ways - {str(directory)}):
        Path(way).chmod(0o700)
        for entry in [each for each in os.scandir(way) if each.path not in stays]:
            _opened(entry, device)
            number = _free(directory, number + 1)
            Path(entry.path).rename(_name(directory, number))
    while entries := [each for each in os.scandir(directory) if each.path not in stays]:
        for entry in entries:
            if not _opened(entry, device):
                Path(entry.path).unlink()
                continue
            for child in list(os.scandir(entry.path)):
                if not _opened(child, device):
                    Path(child.path).unlink()
                    continue
                number = _free(directory, number + 1)
                Path(child.path).rename(_name(directory, number))
            Path(entry.path).rmdir()


def _opened(entry: "os.DirEntry[str]", device: int) -> bool:
    """Return whether an entry is a directory, which then can be read and moved."""
    found = entry.stat(follow_symlinks=False)
    if found.st_dev != device:
        raise OSError(errno.EBUSY, "is a mount, and not a call's file", entry.path)
    is_directory = stat.S_ISDIR(found.st_mode)
    if is_directory:
        Path(entry.path).chmod(0o700)  # to move a directory changes its `..`
    return is_directory


def _name(directory: Path, number: int) -> Path:
    return directory / f".left-{number}"


def _free(directory: Path, number: int) -> int:
    """Return the next number whose name nothing has."""
    while os.path.lexists(_name(directory, number)):
        number += 1
    return number
