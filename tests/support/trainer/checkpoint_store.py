"""The checkpoints of a run whose learner has no model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_trainer.rundir.checkpoints import Checkpoints


class Learner:
    """Writes two small files; can be made to die on the way."""

    dies = False

    def save(self, directory: Path) -> None:
        (directory / "__0_0.distcp").write_bytes(b"weights")
        if self.dies:
            raise KeyboardInterrupt
        (directory / "common.pt").write_bytes(b"common")


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
        saved=lambda step, path: None,
        may_write=may_write,
    )
