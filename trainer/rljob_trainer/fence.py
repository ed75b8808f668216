"""One driver writes into a run's directory: the one of the newest attempt.

A driver whose node is lost to the cluster may go on there, with the volume still mounted, beside its successor.
Every driver therefore writes its name into the directory when it starts, and looks before each write whether it still
stands there: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html, with the files' own system as
the one that is asked.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_trainer.checkpoints import write_atomically

FILE_NAME = "driver.json"


class FencedError(RuntimeError):
    """Another driver works in the directory; the text says which."""


@dataclass(frozen=True, slots=True)
class Name:
    """Who a driver is."""

    origin: str
    """uid of the RLJob, or a word for one call of `rljob run`; empty: nobody said"""
    attempt: int

    def __str__(self) -> str:
        return f"attempt {self.attempt}" + (f" of {self.origin}" if self.origin else "")


@dataclass(frozen=True, slots=True)
class Fence:
    """The right of one driver to write into a directory."""

    directory: Path
    mine: Name

    def claim(self) -> None:
        """Take the directory over; raise FencedError when a later attempt of the same job has it."""
        newest = self._newest()
        if newest and self.mine.origin and newest.origin == self.mine.origin and newest.attempt > self.mine.attempt:
            raise FencedError(f"{self.directory}: {self.mine} comes too late: {newest} works there")
        write_atomically(self.directory / FILE_NAME, json.dumps(asdict(self.mine)).encode())

    def check(self) -> None:
        """Raise FencedError when another driver has taken the directory over."""
        newest = self._newest()
        if newest != self.mine:
            raise FencedError(f"{self.directory}: {newest or 'somebody'} has taken it over from {self.mine}")

    def _newest(self) -> Name | None:
        try:
            return Name(**json.loads((self.directory / FILE_NAME).read_bytes()))
        except FileNotFoundError:
            return None
