"""Writes files that a crash leaves whole: a draft is flushed, then renamed over the old content."""

import os
from pathlib import Path

from rljob_trainer.private_files import READABLE, write_whole


def write_atomically(path: Path, content: bytes | memoryview, mode: int = READABLE) -> None:
    """Write a file so that readers see the old content or the new one, also after a crash."""
    write_whole(path, content, mode, is_synced=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in the directory survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
