"""Where each row of a large file begins: found once, by processes that check every row on the way.

    file ─► parts ─► workers (`scan_worker.py`): every row is parsed and checked, none is kept ─► Index

A row that cannot be used is an error here, before anything is started, as it is in files that are read whole.
"""

import pickle
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from heapq import nlargest
from os import sched_getaffinity, stat_result

import xxhash

from rljob_trainer.data.errors import DataError
from rljob_trainer.data.row_file import PLACE, RowFile, unreadable
from rljob_trainer.data.scan import MEASURED, Scanned, Task

MOST_WORKERS = 16
COMMAND = (sys.executable, "-m", "rljob_trainer.data.scan_worker")


@dataclass(frozen=True, slots=True)
class State:
    """What changes with a file's content, as far as the file system says."""

    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The rows of a file that are trained on, in the order of the file. R rows."""

    places_R: "array[int]"
    """where each begins, in the file's own measure"""
    numbers_R: "array[int]"
    """of each, from 1, as messages name it"""
    num_read: int
    """rows that were looked at; those that are measured on are not in the index"""
    longest_questions: tuple[int, ...]
    """rows with most characters, at most `MEASURED`"""
    longest_labels: tuple[int, ...]
    digest: bytes
    """of the content of all rows that were looked at"""
    state: State
    """of the file"""


def index(file: RowFile, task: Task, limit: int | None) -> Index:
    """Return the index of the file's first `limit` rows; `task` says how to look at them; its `parts` are replaced.

    Raises DataError at the first row that cannot be used, or if the file cannot be read or changes meanwhile.
    """
    before = state(file)
    found = list(_scan(replace(task, parts=file.parts(limit))))
    if state(file) != before:
        raise changed(file)
    return _put_together(file, found, before)


def state(file: RowFile) -> State:
    """Return what shows whether the file has changed. Raises DataError if it is gone."""
    try:
        now: stat_result = file.path.stat()
    except OSError as error:
        raise unreadable(file.path, error) from error
    return State(now.st_size, now.st_mtime_ns)


def changed(file: RowFile) -> DataError:
    """Return the error for a file that is not what was indexed."""
    return DataError(f"{file.path}: it has changed while the run reads it; put it back, or start a new run")


def _scan(task: Task) -> Iterator[Scanned]:
    """Yield what is in each part, in order; every n-th part is that of the same worker, and starts at once."""
    workers = max(1, min(len(sched_getaffinity(0)), MOST_WORKERS, len(task.parts)))
    tasks = [replace(task, parts=task.parts[first::workers]) for first in range(workers)]
    with ThreadPoolExecutor(workers, thread_name_prefix="scan") as pool:
        done = list(pool.map(_worked, tasks))
    for number in range(len(task.parts)):
        yield done[number % workers][number // workers]


def _worked(task: Task) -> Sequence[Scanned]:
    worker = subprocess.run(COMMAND, input=pickle.dumps(task), capture_output=True, check=False)
    if worker.returncode:
        last = worker.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise DataError(f"{task.path}: the scan ended with exit code {worker.returncode}: {' '.join(last)}")
    done: Sequence[Scanned] = pickle.loads(worker.stdout)
    return done


def _put_together(file: RowFile, parts: Sequence[Scanned], state: State) -> Index:
    """Return the index of all parts. Raises DataError at the first fault."""
    places, numbers, questions, labels = array("q"), array("q"), [], []
    passed = kept = 0
    digest = xxhash.xxh3_128()
    for part in parts:
        if part.fault is not None:
            raise DataError(part.fault.replace(PLACE, file.name(passed + part.passed + 1)))
        places.extend(part.places)
        numbers.extend(map(passed.__add__, part.numbers))
        questions += [(size, row + kept) for size, row in part.questions]
        labels += [(size, row + kept) for size, row in part.labels]
        digest.update(part.digest)
        passed += part.passed
        kept += len(part.places)
    return Index(
        places_R=places,
        numbers_R=numbers,
        num_read=sum(part.rows for part in parts),
        longest_questions=tuple(row for _, row in nlargest(MEASURED, questions)),
        longest_labels=tuple(row for _, row in nlargest(MEASURED, labels)),
        digest=digest.digest(),
        state=state,
    )
