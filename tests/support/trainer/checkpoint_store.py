"""The checkpoints of a run whose learner has no model."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import xxhash

from rljob_trainer.rundir.checkpoints import Checkpoints
from rljob_trainer.rundir.retries import Patience


class Learner:
    """Writes two small files; can be made to die on the way."""

    dies = False
    goes_on: Event | None = None
    """is waited for before anything is written"""

    def stage(self, directory: Path) -> None:
        self.directory = directory

    def write(self) -> dict[str, str]:
        if self.goes_on is not None:
            assert self.goes_on.wait(60)
        Patience(pause=lambda _: None)("weights", self._weights)
        if self.dies:
            raise KeyboardInterrupt
        (self.directory / "common.pt").write_bytes(b"common")
        return {"__0_0.distcp": xxhash.xxh3_128_hexdigest(b"weights")}

    def _weights(self) -> None:
        with (self.directory / "__0_0.distcp").open("wb") as file:
            file.write(b"weights")
            file.flush()
            os.fsync(file.fileno())


@dataclass
class Stream:
    position: tuple[int, int] = (0, 32)
    fingerprint: str = "abc"


class Journal:
    def __init__(self) -> None:
        self.commits: list[tuple[int, str]] = []

    def committed(self, step: int, checkpoint: str) -> None:
        self.commits.append((step, checkpoint))


def checkpoints(directory: Path, keep: int = 2, may_write: Callable[[], None] = lambda: None) -> Checkpoints:
    return Checkpoints(
        directory,
        keep,
        "tp1 pp1 dp1",
        "model",
        "fp32",
        Learner(),
        Stream(),
        Journal(),
        copied=lambda step: None,
        saved=lambda step, path, seconds: None,
        may_write=may_write,
    )
