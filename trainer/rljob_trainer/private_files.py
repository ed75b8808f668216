"""Files that a process of a run writes into its directory.

Others may be able to write there, too: none of these files is opened through a link, so that no other user can make
a run write elsewhere. A draft has a random name. Only the owner may read the files: a manifest, a log or a record may
hold secrets.
"""

import io
import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

READABLE = 0o666
"""for weights and what describes them, which users share; what the umask leaves of it"""
PRIVATE = 0o600
DRAFT = ".draft"
"""ends the names of files that are not whole yet"""


def private_directory(directory: Path) -> None:
    """Make a directory for its owner alone, unless it is there: then its modes were chosen by a user."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def appended(path: Path, mode: int = PRIVATE) -> BinaryIO:
    """Return a file, opened to append; it is made if it is not there. Raises OSError if it is a link."""
    return _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode, "ab")


def changed(path: Path, mode: int = PRIVATE) -> BinaryIO:
    """Return a file, opened to read and to change; it is made if it is not there. Raises OSError if it is a link."""
    return _opened(path, os.O_RDWR | os.O_CREAT, mode, "r+b")


def created(path: Path, mode: int = PRIVATE) -> BinaryIO:
    """Return a new file. Raises FileExistsError if there is one, or a link."""
    return _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, "wb")


def is_private(path: Path) -> bool:
    """Return whether a file is not a link, and is its owner's alone."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == PRIVATE


class AppendingHandler(logging.FileHandler):
    """Appends lines of a log to a file."""

    def _open(self) -> io.TextIOWrapper:
        opened = appended(Path(self.baseFilename))
        return io.TextIOWrapper(opened, encoding="utf-8", errors="backslashreplace")


def draft_of(path: Path) -> Path:
    """Return a name for a draft of a file, beside it. `remove_drafts` finds what a crash leaves."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{DRAFT}")


def write_whole(path: Path, content: bytes | memoryview, mode: int = PRIVATE, is_synced: bool = False) -> None:
    """Write a file so that readers see the old content or the new one; `is_synced`: also after a crash."""
    draft = draft_of(path)
    try:
        with created(draft, mode) as file:
            file.write(content)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def remove_drafts(directory: Path) -> None:
    """Remove what writers that crashed have left in a directory."""
    for left in directory.glob(f".*{DRAFT}"):
        with suppress(OSError):
            left.unlink()


def _opened(path: Path, flags: int, mode: int, kind: str) -> BinaryIO:
    return cast(BinaryIO, os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode), kind))
