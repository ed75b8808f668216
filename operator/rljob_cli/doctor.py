"""Opens the logs of a run, of a directory or a stream, for `rljob doctor`."""

import mmap
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from rljob_api.failures.occurrences import Scanned
from rljob_api.failures.scan import scan
from rljob_trainer.rundir.logs import SUFFIXES, is_log, newest_attempt

EVENTS: Final = "events.jsonl"
MOST_FILES: Final = 2000


class NoLogError(ValueError):
    """There is nothing to read; the text names the path."""


def named(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the files to read, each with its name in messages. Raises NoLogError."""
    found: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir():
            files = [each for each in sorted(path.rglob("*")) if is_log(each, path)]
            chosen = newest_attempt(files)[:MOST_FILES]
            if not chosen:
                raise NoLogError(f"{path}: has no logs; looked for {', '.join(f'*{each}' for each in SUFFIXES)}")
            found.extend((file, str(file.relative_to(path))) for file in chosen)
        elif path.exists():
            found.append((path, path.name))
        else:
            raise NoLogError(f"{path}: no such file or directory")
    return found


def scanned(path: Path, name: str) -> Scanned:
    """Return what a file contains; it is mapped, so that a file larger than the memory can be read."""
    if not path.stat().st_size:
        return scan(name, b"")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        result = scan(name, data)
    if path.name == EVENTS:  # of all attempts: it says whether the run succeeded, not why the newest one failed
        result.found.clear()
    return result


def streamed(stream: BinaryIO, name: str) -> Scanned:
    """Return what a stream contains; it is kept in a temporary file while it is read."""
    with tempfile.NamedTemporaryFile(prefix="rljob-doctor-") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
        file.flush()
        return scanned(Path(file.name), name)
