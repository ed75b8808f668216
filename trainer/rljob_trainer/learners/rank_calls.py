"""What the driver calls on the learner's ranks. `LearnerRank` is such a rank, and describes each method.

`LearnerGroup` takes a method from here, `group.call(Rank.links)`, so that mypy checks its name and arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rljob_trainer.batches.packing import MicroBatch
from rljob_trainer.learners.config import Estimator
from rljob_trainer.learners.copies import UnequalCopy
from rljob_trainer.learners.link_report import LinkReport
from rljob_trainer.learners.skips import Skips
from rljob_trainer.metrics import OptimizerStep

Values_R = npt.NDArray[np.float32]
"""a number for each response token of a micro-batch"""


@dataclass(frozen=True, slots=True)
class Written:
    """What a rank has written of a checkpoint."""

    lengths: npt.NDArray[np.int64]
    """of the items of its file, in their order [bytes]"""
    digests: Mapping[str, str]
    """XXH3 (128 bits) of each of its files, by name"""


class Rank(Protocol):
    """One rank. Methods are collective if they do not say otherwise; lists are empty on ranks that do not hold the
    output."""

    def links(self) -> LinkReport | None: ...

    def train(
        self, micro_batches: Sequence[MicroBatch], old_logprobs: Sequence[Values_R] | None, number: int | None
    ) -> OptimizerStep: ...

    def train_critic(self, micro_batches: Sequence[MicroBatch]) -> OptimizerStep: ...

    def logprobs(self, micro_batches: Sequence[MicroBatch], number: int | None) -> list[Values_R]: ...

    def kl(self, micro_batches: Sequence[MicroBatch], estimator: Estimator, clamp: bool) -> list[Values_R]: ...

    def values(self, micro_batches: Sequence[MicroBatch]) -> list[Values_R]: ...

    def divergence(self, micro_batches: Sequence[MicroBatch]) -> list[Values_R]: ...

    def recent_skips(self) -> Skips: ...

    def zeros(self) -> tuple[str, ...]: ...

    def unequal_copies(self) -> tuple[UnequalCopy, ...]: ...

    def write_hf(self, directory: Path) -> None: ...

    def stage(self, directory: Path) -> None: ...

    def write_staged(self) -> Written:
        """Not collective."""

    def finish_save(self, written: Sequence[Written]) -> None:
        """Of rank 0 alone."""

    def load(self, directory: Path) -> int:
        """Not collective: `spread` is called when all ranks have loaded."""

    def spread(self) -> None: ...

    def bytes_done(self) -> int:
        """Not collective, and beside another call."""

    def leave(self, weights: bool) -> None: ...
