"""Lets only the driver of the newest attempt write into a run's directory.

A driver on a node that the cluster has lost may still run, with the volume mounted, beside its successor. Every driver
therefore writes its name into the directory when it starts, and checks it before each write. This is a fencing token,
held by the file system itself: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_trainer.rundir.atomic_files import write_atomically
from rljob_trainer.rundir.patient_reading import PATIENT, Patience

FILE_NAME = "driver.json"


class FencedError(RuntimeError):
    """Another driver works in the directory; the text says which."""


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

    def _newest(self) -> Name | None:
        file = self.directory / FILE_NAME
        try:
            return Name(**json.loads(self.patience(file, file.read_bytes)))
        except FileNotFoundError:
            return None
