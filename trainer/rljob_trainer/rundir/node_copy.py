"""A model's configuration, read from a shared file system by one process of each node.

first rank of a node ─► reads the file, patiently ─► copy on the node's own disk ◄─ the other ranks, which wait for it
"""

import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import xxhash

from rljob_trainer.processes.file_lock import locked
from rljob_trainer.rundir.retries import patiently

log = logging.getLogger(__name__)


def place_of_copies() -> Path:
    """Return this user's folder of copies on this node."""
    return Path(tempfile.gettempdir()) / f"rljob-configs-{os.getuid()}"


def node_copy(file: Path, place: Path | None = None, read: Callable[[Path], bytes] = Path.read_bytes) -> Path:
    """Return the folder of a copy of a JSON file, under the file's own name. A file that changes gets another copy.

    Where the node has no place for a copy, the folder of the file itself.
    Raises FileNotFoundError, and what the last try to read it raised.
    """
    known = file.stat()
    place = place or place_of_copies()
    version = f"{file.resolve()} {known.st_mtime_ns} {known.st_size}"
    target = place / xxhash.xxh3_128_hexdigest(version.encode())
    if not _is_ours(place):
        return file.parent
    with locked(place / "lock"):
        if not (target / file.name).is_file():
            _write(target, file.name, patiently(lambda: _valid(read(file))))
    return target


def _is_ours(place: Path) -> bool:
    """Return whether the folder is there, or can be made, and no other user can write to it."""
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError as error:
        log.warning("action=copy_config outcome=skipped place=%s: %s", place, error)
        return False
    return found.st_uid == os.getuid() and found.st_mode & 0o022 == 0 and not place.is_symlink()


def _valid(content: bytes) -> bytes:
    json.loads(content)
    return content


def _write(target: Path, name: str, content: bytes) -> None:
    draft = target.with_suffix(".draft")
    draft.mkdir(exist_ok=True)
    (draft / name).write_bytes(content)
    draft.rename(target)
