"""Opens the logs of a run, of a directory or a stream, for `rljob doctor`."""

import mmap
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from rljob_doctor.occurrences import Scanned
from rljob_doctor.scan import scan
from rljob_trainer.rundir.logs import SUFFIXES, is_log, newest_attempt

EVENTS: Final = "events.jsonl"
MOST_FILES: Final = 2000
LEAST_S: Final = 3.0
BYTES_PER_S: Final = 2**20
"""of the processor for a log; one in which every line has a failure's signature is read three times as fast"""


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
        result = limited(name, data)
    if path.name == EVENTS:  # of all attempts: it says whether the run succeeded, not why the newest one failed
        result.found.clear()
    return result


def limited(name: str, data: bytes | mmap.mmap) -> Scanned:
    """Return what a log contains, as far as it can be read in its time: it may be from any program."""
    until = time.process_time() + seconds(len(data))
    return scan(name, data, lambda: time.process_time() < until)


def seconds(size: int) -> float:
    """Return how long the processor may take for a log of this size in bytes."""
    return LEAST_S + size / BYTES_PER_S


def left_out(logs: Sequence[Scanned]) -> list[str]:
    """Return of which logs a part was not read, because it takes too long."""
    return [
        f"{log.name}: {log.unread} of {log.size} bytes were not read, and {log.unjudged} exceptions not looked up: "
        f"it takes more than {seconds(log.size):.0f} s of the processor"
        for log in logs
        if log.unread or log.unjudged
    ]


def streamed(stream: BinaryIO, name: str) -> Scanned:
    """Return what a stream contains; it is kept in a temporary file while it is read."""
    with tempfile.NamedTemporaryFile(prefix="rljob-doctor-") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
        file.flush()
        return scanned(Path(file.name), name)
