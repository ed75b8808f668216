"""Lets only the driver of the newest attempt write into a run's directory.

A driver on a node that the cluster has lost may still run, with the volume mounted, beside its successor. Every driver
therefore writes its name into the directory when it starts, and checks it before each write. This is a fencing token,
held by the file system itself: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html.
"""

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_api.errors import RunError
from rljob_api.exits import Exit
from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.retries import PATIENT, Patience

log = logging.getLogger(__name__)

FILE_NAME = "driver.json"
BEAT_S = 60.0
"""between two touches of the file. The operator's Job that deletes directories keeps one that was touched lately [s]"""


class FencedError(RunError, RuntimeError):
    """Another driver works in the directory; the text says which."""

    exit = Exit.IN_USE


@dataclass(frozen=True, slots=True)
class Name:
    """Identifies a driver."""

    origin: str
    """uid of the RLJob, or a word for one call of `rljob run`; empty: unknown"""
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt}" + (f" of {self.origin}" if self.origin else "")


@dataclass(frozen=True, slots=True)
class Fence:
    """A driver's permission to write into a directory."""

    directory: Path
    mine: Name
    patience: Patience = PATIENT

    def claim(self) -> None:
        """Take the directory over; raise FencedError when a later attempt of the same job has it."""
        newest = self._newest()
        if newest and self.mine.origin and newest.origin == self.mine.origin and newest.attempt > self.mine.attempt:
            raise FencedError(f"{self.directory}: {self.mine} comes too late: {newest} works there")
        file = self.directory / FILE_NAME
        self.patience(file, lambda: write_atomically(file, json.dumps(asdict(self.mine)).encode()))

    def check(self) -> None:
        """Raise FencedError when another driver has taken the directory over."""
        newest = self._newest()
        if newest != self.mine:
            raise FencedError(f"{self.directory}: {newest or 'another run'} has taken it over from {self.mine}")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Touch the file now and then: others see a run that writes nothing for long."""
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), name="fence", daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(BEAT_S):
            try:
                os.utime(self.directory / FILE_NAME, follow_symlinks=False)
            except OSError as error:
                log.warning("action=touch file=%s outcome=failed, will try again: %s", FILE_NAME, error)

    def _newest(self) -> Name | None:
        file = self.directory / FILE_NAME
        try:
            return name_in(self.patience(file, file.read_bytes))
        except FileNotFoundError:
            return None


def name_in(content: bytes) -> Name | None:
    """Return the name in a file; None: there is none: the file is damaged, and its writer does not write any more."""
    try:
        found = Name(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found.origin, str) and type(found.attempt) is int else None
